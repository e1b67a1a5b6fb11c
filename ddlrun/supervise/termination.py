"""Why a job ends: who or what ends it, and which rank was the first to fail."""

import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddlrun.plan.outcome import RankEnd
from ddlrun.process_managers.openmpi import improper_end, lost_host

UNREACHABLE, TIMED_OUT = 3, 124


class EndReason(NamedTuple):
    """Why the job is ended before its time: ddlrun's exit code, the signal if one did it, and the words."""

    exit_code: int
    reason: str | None = None
    signal: int | None = None
    wanted: bool = False
    """Somebody, or a time limit, asked for it."""


class Termination(NamedTuple):
    """A job that is being ended; times as time.monotonic() has them."""

    cause: EndReason
    since: float
    kill_at: float
    """When mpirun is killed, with ranks that have not ended."""
    left_at: float | None = None
    """When all ranks had ended, so that their keepers could leave."""


# With this MPI of Open MPI 5 exits when another rank's connection is gone.
SOCKET_CLOSED = 14
BY_ORDER = (130, 137, 143)
# What a rank says that lost another one: the other one is the cause.
COLLATERAL = (
    "Connection reset by peer", "Connection closed by peer", "Broken pipe", "Connection refused",
    "remote process exited", "NCCL communicator was aborted", "Socket closed", "Horovod has been shut down",
    "failed to connect to all addresses", "Connection was likely closed", "MPI_ERR_PROC_ABORTED",
)  # fmt: skip


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first to fail that does not blame another rank.

    A dying process closes its sockets before its keeper hears of it, so another rank may fail of that and
    ddlrun's order come in between: then it is the one that did not end as an order ends one.
    """
    known = list(ends)
    failed = [end for end in known if end.exit_code and not end.ordered]
    ordered = [end for end in known if end.exit_code and end.ordered and end.exit_code not in BY_ORDER]
    return next((end for end in (*failed, *ordered) if not _collateral(end)), next(iter(failed), None))


def _collateral(end: RankEnd) -> bool:
    return end.exit_code == SOCKET_CLOSED or any(sign in end.tail for sign in COLLATERAL)


def ended_by_mpirun(code: int, said: str, ends: Mapping[int, RankEnd]) -> tuple[EndReason, str | None]:
    """Say why mpirun ended while ranks were running, or with an error that no rank explains; and the host it lost.

    `said` is what it printed, `ends` are those of ranks so far.
    """
    lost = lost_host(said)
    if lost is not None:
        host, how = lost
        why = "something there was killed, the host went down, or the network failed"
        return EndReason(UNREACHABLE, f"mpirun lost host {host}, {how}: {why}"), host
    improper = improper_end(said)
    if improper is not None:
        rank, host = improper
        with_code = f" with {ends[rank].exit_code}" if rank in ends else ""
        why = f"rank {rank} on {host} exited{with_code} while others were in MPI, without MPI_Finalize"
        return EndReason(code or 1, why), None
    if code < 0:
        return EndReason(128 - code, f"mpirun was killed by {signal.Signals(-code).name}", -code), None
    return EndReason(code or 1, None if code else "mpirun ended while ranks were still running"), None
