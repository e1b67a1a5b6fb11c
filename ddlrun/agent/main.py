"""The main function of agents."""

from __future__ import annotations

import gc
import os
import sys

from ddlrun import __version__
from ddlrun.agent.agent import Agent
from ddlrun.agent.protocol import HERE
from ddlrun.errors import EXIT_BAD_INPUT
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import complain
from ddlrun.keeper.protocol import VERSION
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USAGE = "usage: start.py --agent | --version; ddlrun starts it"
# The first message must arrive within this time, as a host whose network fails is not told that no more will come.
TREE_SECONDS = 60


def main(words: list[str], archive: int = -1) -> NoReturn:
    """Greet the node that has started this agent, and run until the connection to it has ended.

    Args:
        words: The arguments.
        archive: The descriptor of the archive from which this agent's modules come; -1 if they are files.
    """
    here = words[:1] == [HERE]
    if words == ["--version"]:
        sys.stdout.write(f"ddlrun {__version__}\n")
        sys.exit()
    if words != ["--agent"] and not here:
        complain(USAGE)
        sys.exit(EXIT_BAD_INPUT)
    _name_process("ddlrun-root" if here else "ddlrun-agent")
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # ddlrun ignores it; the ranks' programs must not inherit that
    parent = PipeConnection(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a keeper prints by itself
    agent = Agent(parent, VERSION, (archive,), here=here)
    signal.alarm(TREE_SECONDS)
    if not here:
        parent.send_raw([f"@ddlrun-agent {VERSION}\n".encode()])
    import ddlrun.keeper.entry  # noqa: F401, PLC0415 - while the job is on its way

    gc.freeze()  # the collector leaves alone what exists now: forks would get copies of that
    gc.enable()
    agent.run()
    os._exit(0)


def _name_process(name: str) -> None:
    """Name this process, and its forks: what ends or spares the processes of a run knows them by that."""
    try:
        file = os.open("/proc/self/comm", os.O_WRONLY)
    except OSError:  # the name is only a convenience where /proc cannot be written
        return
    os.write(file, name.encode())
    os.close(file)
