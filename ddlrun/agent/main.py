"""The process manager's main function: the root of the tree of agents, or an agent below it."""

from __future__ import annotations

import gc
import os
import sys

from ddlrun import __version__
from ddlrun.errors import EXIT_BAD_INPUT, EXIT_PREFLIGHT
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import complain
from ddlrun.keeper.protocol import VERSION
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

AGENT_NAME, ROOT_NAME = "ddlrun-agent", "ddlrun-root"
# The first message must arrive within this time, as a host whose network fails is not told that no more will come.
TREE_SECONDS = 60


def main(words: list[str], archive: int = -1) -> NoReturn:
    """Run the process manager or an agent, and exit.

    Args:
        words: The arguments.
        archive: The descriptor of the archive from which this agent's modules come; -1 if they are files.
    """
    if words == ["--version"]:
        sys.stdout.write(f"ddlrun {__version__}\n")
        sys.exit()
    if words == ["--agent"]:
        _run_agent(archive)
    _run_root(words)


def _run_agent(archive: int) -> NoReturn:
    """Greet the node that has started this agent, and stay until the connection to it has ended."""
    from ddlrun.agent.agent import Agent  # noqa: PLC0415 - the root does without it

    _name_process(AGENT_NAME)
    parent = PipeConnection(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a keeper prints by itself
    agent = Agent(parent, VERSION, (archive,))
    signal.alarm(TREE_SECONDS)
    parent.send_raw([f"@ddlrun-agent {VERSION}\n".encode()])
    import ddlrun.keeper.entry  # noqa: F401, PLC0415 - while the job is on its way

    _enable_collections()
    agent.run()
    os._exit(0)


def _run_root(words: list[str]) -> NoReturn:
    """Run the job of the command line."""
    from ddlrun.agent.command_line import USAGE, read_command  # noqa: PLC0415 - agents do without it
    from ddlrun.agent.root import Root  # noqa: PLC0415 - the same

    _name_process(ROOT_NAME)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # ddlrun ignores it; the ranks' programs must not inherit that
    try:
        command = read_command(words, os.environ)
    except (KeyError, ValueError, IndexError):
        complain(USAGE)
        os._exit(EXIT_BAD_INPUT)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        os._exit(EXIT_PREFLIGHT)
    _enable_collections()
    root = Root(VERSION)
    root.begin(command)
    os._exit(root.run())


def _enable_collections() -> None:
    """Let the garbage collector run, but leave alone what exists now: forks would get copies of that."""
    gc.freeze()
    gc.enable()


def _name_process(name: str) -> None:
    """Name this process, and its forks: what ends or spares the processes of a run knows them by that."""
    try:
        file = os.open("/proc/self/comm", os.O_WRONLY)
    except OSError:  # the name is only a convenience where /proc cannot be written
        return
    os.write(file, name.encode())
    os.close(file)
