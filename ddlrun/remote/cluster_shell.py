"""One sh script per host by ClusterShell, whose workers here keep each reply as it is, and limit its length."""

import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ClusterShell.NodeSet import NodeSet
from ClusterShell.Task import task_self
from ClusterShell.Worker.EngineClient import EngineClientEOF
from ClusterShell.Worker.Exec import ExecClient, ExecWorker
from ClusterShell.Worker.Ssh import SshClient

from ddlrun.keeper.process_stat import read_stat
from ddlrun.remote.agent import SCRIPT_SECONDS, SSH_OPTIONS, AgentLauncher, run_script
from ddlrun.remote.processes import FinishedProcess
from ddlrun.wording import printable

# A warning says that a command ended before it had read its script, which its reply explains better.
logging.getLogger("ClusterShell").setLevel(logging.ERROR)
# For output and errors together. The longest replies, those of all hardware tools, have less than 1 MiB.
MOST_BYTES = 16 << 20
CONNECT_SECONDS = 10.0
# The number of hosts for which ssh is started in a second, even on a busy machine.
HOSTS_PER_SECOND = 50
REPLY_TOO_LONG = "its reply is too long"
# Seconds; the kernel records the start of a process no more precisely.
CLOCK_TICK = 1 / os.sysconf("SC_CLK_TCK")


class _LimitedClient(ExecClient):  # type: ignore[misc]  # ClusterShell has no types
    """A command for one host; it is killed when its reply is too long."""

    def _handle_read(self, stream: str) -> None:
        """Keep what has arrived on a stream. Raises EngineClientEOF at its end, or if the reply is too long.

        ClusterShell's own method splits it into lines, which take 100 times the memory if they are short.
        """
        reply: HostReply = self.worker.replies.setdefault(self.key, HostReply())
        (reply.err if stream == self.worker.SNAME_STDERR else reply.out).extend(self._read(stream))
        if len(reply.out) + len(reply.err) > MOST_BYTES:
            reply.too_long = True
            self.popen.kill()
            raise EngineClientEOF


class _LimitedSshClient(_LimitedClient, SshClient):  # type: ignore[misc]
    """The same by ssh."""


class HostReply:
    """What a host's command has written so far."""

    def __init__(self) -> None:
        self.out, self.err = bytearray(), bytearray()
        self.too_long = False
        """Whether the command was killed because it wrote too much."""


class LimitedExecWorker(ExecWorker):  # type: ignore[misc]
    """A command on this machine per host."""

    SHELL_CLASS = _LimitedClient

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Create the worker, as ClusterShell does."""
        self.replies: dict[str, HostReply] = {}
        super().__init__(*args, **kwargs)


class LimitedSshWorker(LimitedExecWorker):
    """A command on each host by ssh."""

    SHELL_CLASS = _LimitedSshClient


def run_by_cluster_shell(
    scripts: Mapping[str, str], agents: AgentLauncher, timeout: float, fanout: int
) -> dict[str, FinishedProcess]:
    """Start the launcher once per host; hosts with the same script share a ClusterShell worker."""
    task = task_self()
    task.set_default("local_worker", LimitedExecWorker)
    task.set_default("distant_worker", LimitedSshWorker)
    task.set_info("fanout", fanout)
    task.set_info("ssh_options", shlex.join((*SSH_OPTIONS, *agents.words)))
    task.set_info("connect_timeout", min(CONNECT_SECONDS, timeout))
    task.set_default("stderr", True)
    hosts_by_script: dict[str, list[str]] = {}
    for name, script in scripts.items():
        hosts_by_script.setdefault(script, []).append(name)
    workers: dict[str, Any] = {}  # ClusterShell has no types
    for script, names in hosts_by_script.items():
        workers |= dict.fromkeys(names, _start_worker(task, script, names, agents, timeout=timeout))
    _resume(task)
    codes: dict[str, int] = {}
    for code, nodes in task.iter_retcodes():
        codes.update(dict.fromkeys(nodes, code))
    return {name: _read_reply(name, worker, codes.get(name)) for name, worker in workers.items()}


def _read_reply(name: str, worker: Any, code: int | None) -> FinishedProcess:  # noqa: ANN401 - as above
    """Take a host's reply from the worker, whose memory it then needs no more."""
    reply = worker.replies.pop(name, None)
    if reply is None:
        return FinishedProcess(code, "", "")
    if reply.too_long:
        return FinishedProcess(code, "", REPLY_TOO_LONG)
    return FinishedProcess(code, _decode(reply.out), _decode(reply.err))


def _start_worker(task: Any, script: str, names: Sequence[str], agents: AgentLauncher, *, timeout: float) -> Any:  # noqa: ANN401 - as above
    nodes = NodeSet.fromlist(list(names))
    whole = f"{{\n{script}\n}}\n".encode()  # the braces make sh parse all of it before it runs any
    size = str(len(whole))
    if agents.launcher == "ssh":
        # ClusterShell starts an ssh for each host of the fan-out before the first one gets its script.
        command = run_script(size, SCRIPT_SECONDS + task.info("fanout") // HOSTS_PER_SECOND)
        worker = task.shell(command, nodes=nodes, timeout=timeout, stdin=True)
    else:
        command = _launcher_command(script, agents, size)
        worker = task.shell(command, nodes=nodes, timeout=timeout, stdin=True, remote=False)
    worker.write(whole)
    worker.set_write_eof()
    return worker


def _launcher_command(script: str, agents: AgentLauncher, size: str) -> str:
    """Return the command that ClusterShell runs for each host, with %h for the host's name."""
    words = shlex.join(agents.shell).replace("@bytes", size)
    if agents.launcher == "agent":  # which need not pass on standard input
        words = f"{shlex.join(agents.words)} @host {shlex.quote(f'exec sh -c {shlex.quote(script)}')}"
    return f"exec {words}".replace("%", "%%").replace("@host", "%h", 1)


def _resume(task: Any) -> None:  # noqa: ANN401 - as above
    """Run a task to its end; a Ctrl-C or SIGTERM leaves no ssh behind."""
    started = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        task.resume()
    except BaseException as error:  # noqa: BLE001 - another one may be raised
        with suppress(Exception):  # it may have interrupted an update of ClusterShell's own lists
            task.abort(kill=True)
        _kill_children(started)  # those that are not in ClusterShell's lists yet
        raise _find_interrupt(error) from None


def _find_interrupt(error: BaseException) -> BaseException:
    """Return the KeyboardInterrupt or SystemExit during whose handling ClusterShell failed, else the error itself."""
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception):
            return cause
        cause = cause.__context__
    return error


def _kill_children(since: float) -> None:
    """Kill the descendants that were started since a time (CLOCK_BOOTTIME); the manager and its guard are older."""
    import psutil  # noqa: PLC0415 - 17 ms, after a Ctrl-C alone

    for child in psutil.Process().children(recursive=True):
        stat = read_stat(child.pid)  # psutil's own start time is up to a second too early
        if stat is not None and stat.start_ticks * CLOCK_TICK >= since - CLOCK_TICK:
            with suppress(psutil.Error, OSError):
                child.kill()


def _decode(buffer: bytearray) -> str:
    return printable(buffer.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n"))
