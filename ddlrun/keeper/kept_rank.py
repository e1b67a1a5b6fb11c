"""The start of a keeper: it connects to ddlrun, starts the program, and runs beside it.

These modules are loaded for a ddlrun that supervises the job, and not for ranks that are started by hand.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os

from ddlrun.errors import EXIT_SIGNAL, UnreachableError
from ddlrun.keeper import program, protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.binding import VISIBLE_GPUS
from ddlrun.keeper.connection import connect
from ddlrun.keeper.forks import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, complain
from ddlrun.keeper.keeper import Keeper
from ddlrun.keeper.processes import mark_process
from ddlrun.keeper.signals import SignalQueue
from ddlrun.ranges import render_ranges
from ddlrun.wire.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.nccl_log import NcclLog
    from ddlrun.keeper.settings import KeeperSettings

CONNECT_SECONDS = 5.0
# A job that has ended is not reached; what has started this process then ends it within this time.
ORDER_SECONDS = 1.0
# When all keepers connect at once, ddlrun accepts at least this many per second.
CONNECTIONS_PER_SECOND = 2000


def keep(channel: str, settings: KeeperSettings, prctl: Callable[[int, int], object]) -> None:
    """Start the program of a rank, run until it has ended, and exit with its exit code."""
    connection = _connect(channel, settings)
    os.environ.setdefault("DDLRUN_DDL_SECRET", connection.program_secret)  # for ddlrun.ddl over TCP
    mark_process(os.environ.get("DDLRUN_RUN", ""))
    announce_cpus()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    loop = Loop()
    signals = SignalQueue(loop)
    log = _open_nccl_log(settings, connection)
    running = program.refuse(settings) if settings.strict else program.start(settings, prctl)
    if settings.link is not None:
        os.close(settings.link)
    keeper = Keeper(loop, signals, connection, running, settings, log)
    keeper.send(protocol.HELLO, f"{settings.rank}\t{os.uname().nodename}\t{settings.local_rank}\t{os.getpid()}")
    if settings.report:
        keeper.send(protocol.BOUND, settings.report)
    for problem in settings.problems:
        keeper.send(protocol.NOTE, problem)
    keeper.run()


def _open_nccl_log(settings: KeeperSettings, connection: LauncherConnection) -> NcclLog | None:
    """Let NCCL log for ddlrun in the first rank of a host with GPUs, unless the user has chosen what it logs.

    In a container NCCL could not open the pipe, and would write to standard output.
    """
    has_gpus = any(map(os.environ.get, VISIBLE_GPUS.values()))
    if settings.local_rank != 0 or not has_gpus or settings.container is not None:
        return None
    from ddlrun.keeper.nccl_log import NcclLog, is_free  # noqa: PLC0415 - for such ranks alone

    if not is_free(os.environ):
        return None
    log = NcclLog(connection)
    os.environ.update(log.variables)
    return log


def _connect(channel: str, settings: KeeperSettings) -> LauncherConnection:
    """Connect to ddlrun, or exit."""
    try:
        seconds = CONNECT_SECONDS + max(settings.size, 0) / CONNECTIONS_PER_SECOND
        return connect(channel, seconds, settings.rank, settings.heartbeat)
    except OSError as error:
        if signal.sigtimedwait((signal.SIGTERM,), ORDER_SECONDS) is not None:
            os._exit(EXIT_SIGNAL + signal.SIGTERM)
        complain(f"{settings.label} cannot reach ddlrun: {error}")
        os._exit(UnreachableError.exit_code)


def announce_cpus() -> None:
    """Announce the CPUs of this process to the launches of other users until it ends, unless it may run on all of them.

    It holds a Unix socket to which nobody can connect, and whose abstract name has the user and the CPUs.
    /proc/net/unix shows these names to everybody on the host (machine/announced_cpus.py).
    """
    cpus = os.sched_getaffinity(0)
    if len(cpus) >= (os.cpu_count() or 1):
        return
    announced = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)  # it refuses connections
    try:
        announced.bind(f"\0ddlrun-cpus/{os.getuid()}/{os.getpid()}/{render_ranges(cpus)}")
        announced.detach()  # the kernel closes it
    except OSError:  # the name is too long
        announced.close()
