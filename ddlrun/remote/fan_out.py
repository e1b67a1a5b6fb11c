"""One sh script per host, on all hosts at once: by ssh, a scheduler's command or an agent."""

import os
import shlex
from collections.abc import Mapping, Sequence

from ddlrun.errors import EXIT_TERMINATED, EXIT_UNREACHABLE, InputError
from ddlrun.host_names import check_host_name
from ddlrun.remote.agent import SCRIPT_SECONDS, SSH_OPTIONS, AgentLauncher, run_script
from ddlrun.remote.processes import CapturedCommand, CommandRunner, FinishedProcess, ProgramReply
from ddlrun.wording import printable

FANOUT = 128
# For output and errors together. The longest replies, those of all hardware tools, have less than 1 MiB.
MOST_BYTES = 16 << 20
REPLY_TOO_LONG = "its reply is too long"
CONNECT_SECONDS = 10.0
# The number of hosts for which ssh is started in a second, even on a busy machine.
HOSTS_PER_SECOND = 50


def run_on_hosts(
    scripts: Mapping[str, str], agents: AgentLauncher, timeout: float, fanout: int = FANOUT
) -> dict[str, FinishedProcess]:
    """Run each host's sh script there, each within a time limit in seconds; no password is ever asked for.

    A keeper may report any text as the name of its host. ssh would read some of them as options: where a name is not
    that of a host nothing is started, and the reply is the reason.
    """
    replies = {name: reply for name in scripts if (reply := refuse(name)) is not None}
    scripts = {name: script for name, script in scripts.items() if name not in replies}
    # The braces make sh parse all of a script before it runs any. Most hosts have the same one.
    whole = {script: f"{{\n{script}\n}}\n".encode(errors="surrogateescape") for script in scripts.values()}
    line = _command_line(agents, min(CONNECT_SECONDS, timeout), SCRIPT_SECONDS + fanout // HOSTS_PER_SECOND)
    commands = {name: _command(line, name, whole[script]) for name, script in scripts.items()}
    CommandRunner(timeout, MOST_BYTES).run(commands.values(), at_once=fanout)
    return {**replies, **{name: read_reply(command) for name, command in commands.items()}}


def refuse(name: str) -> FinishedProcess | None:
    """Return the reply for a name that is not that of a host; None for a host."""
    try:
        check_host_name(name, "nothing was started there")
    except InputError as error:
        return FinishedProcess(EXIT_UNREACHABLE, "", printable(str(error)))
    return None


def _command_line(agents: AgentLauncher, connect_seconds: float, script_seconds: int) -> Sequence[str]:
    """Return the command line of a shell on @host; it waits some seconds for a script of @bytes from standard input."""
    if agents.launcher == "agent":  # which need not pass on standard input
        return (*agents.words, "@host", "@script")
    if agents.launcher != "ssh":
        return agents.shell
    options = ("ForwardAgent=no", "ForwardX11=no", f"ConnectTimeout={max(1, int(connect_seconds))}", "BatchMode=yes")
    words = ("ssh", *SSH_OPTIONS, *agents.words, *(f"-o{option}" for option in options))
    return (*words, "@host", run_script(seconds=script_seconds))


def _command(line: Sequence[str], name: str, script: bytes) -> CapturedCommand:
    """Return the command that runs a script on a host."""
    words = [name if word == "@host" else word.replace("@bytes", str(len(script))) for word in line]
    if words[-1] == "@script":
        words[-1] = f"exec sh -c {shlex.quote(os.fsdecode(script))}"
    return CapturedCommand(words, script)


def read_reply(reply: ProgramReply) -> FinishedProcess:
    """Return the exit code of a host's script, and its output and errors as a terminal can show them."""
    if reply.too_long:
        return FinishedProcess(EXIT_TERMINATED, "", REPLY_TOO_LONG)
    texts = (data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n") for data in (reply.out, reply.err))
    return FinishedProcess(reply.code, *map(printable, texts))
