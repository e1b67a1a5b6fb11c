"""The start of a keeper: it connects to ddlrun, starts the program, and stays with it.

These modules are loaded for a ddlrun that supervises the job, and not for ranks that are started by hand.
"""

from __future__ import annotations

import os

from ddlrun.errors import PreflightError, UnreachableError
from ddlrun.keeper import program, protocol
from ddlrun.keeper.announcement import announce_cpus
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.connection import LauncherSocket, connect
from ddlrun.keeper.execution import complain
from ddlrun.keeper.keeper import Keeper
from ddlrun.keeper.prctl import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG
from ddlrun.keeper.run_mark import mark_process
from ddlrun.keeper.signals import SignalQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.settings import KeeperSettings, PreparedRank

CONNECT_SECONDS = 5.0
# When all keepers connect at once, ddlrun accepts at least this many per second.
CONNECTIONS_PER_SECOND = 2000


def keep(channel: str, rank: PreparedRank, settings: KeeperSettings, prctl: Callable[[int, int], object]) -> None:
    """Start the program of a rank, stay with it to its end, and exit with its exit code."""
    connected = _connect(channel, settings)
    os.environ.setdefault("DDLRUN_DDL_SECRET", connected.program_secret)  # for ddlrun.ddl over TCP
    mark_process(os.environ.get("DDLRUN_RUN", ""))
    announce_cpus()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signals = SignalQueue()
    if rank.strict:
        running = program.refuse(PreflightError.exit_code)
    else:
        running = program.start(rank.argv, settings, prctl, rank.request)
    if settings.link is not None:
        os.close(settings.link)
    if rank.places is not None:
        running.show_own_paths(rank.places.cache)
    keeper = Keeper(connected, running, signals, settings)
    keeper.send(protocol.HELLO, f"{settings.rank}\t{os.uname().nodename}\t{settings.local_rank}\t{os.getpid()}")
    if rank.report:
        keeper.send(protocol.BOUND, rank.report)
    for problem in rank.problems:
        keeper.send(protocol.NOTE, problem)
    if running.input is not None:
        keeper.send(protocol.INPUT_WANTED, "")
    keeper.run()


def _connect(channel: str, settings: KeeperSettings) -> LauncherSocket:
    """Connect to ddlrun, or exit."""
    try:
        return connect(channel, CONNECT_SECONDS + max(settings.size, 0) / CONNECTIONS_PER_SECOND, settings.rank)
    except OSError as error:
        complain(f"{settings.label} cannot reach ddlrun: {error}")
        os._exit(UnreachableError.exit_code)
