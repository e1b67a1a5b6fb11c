"""The cause of a job's end: a rank that failed, a host that was lost, mpirun itself, or a request."""

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddlrun.errors import UnreachableError
from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import is_collateral
from ddlrun.process_managers.openmpi import improper_end, killed_rank, lost_host
from ddlrun.supervise.heartbeat import UNREACHABLE
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.wording import signal_name

# 128 + SIGINT, SIGKILL, SIGTERM: the exit codes of programs that a keeper ended.
ORDERED_CODES = (130, 137, 143)
RESET = "a firewall or another device on the way reset it, or the host was restarted"
SPAWN_REFUSED = "MPI_Comm_spawn found no free slot; --spawn-slots N lets the job start N more processes per host"


class ResetConnection(NamedTuple):
    """The connection of a rank's keeper that was reset."""

    rank: int | None
    label: str


class EndReason(NamedTuple):
    """The reason for the end of a job before its ranks end by themselves."""

    exit_code: int
    """ddlrun's exit code."""
    reason: str | None = None
    """In words; None: the ranks' ends say it."""
    signal: int | None = None
    """The signal that did it."""
    requested: bool = False
    """Whether the user or a limit requested the end."""
    reset: "ResetConnection | None" = None
    """The connection whose reset is the reason."""


def explain_closed_connection(peer: KeeperConnection) -> EndReason:
    """Return the reason for the end of a job when a keeper's connection is closed while its program runs."""
    label = f"rank {peer.rank} on {peer.host}"
    code = UnreachableError.exit_code
    if peer.farewell:
        return EndReason(code, f"{label} had to end: {peer.farewell}")
    if peer.error is None:
        return _killed(label)
    text = f"the connection of {label} broke ({os.strerror(peer.error)})"
    if peer.error == errno.ECONNRESET:
        return EndReason(code, f"{text}: {RESET}", reset=ResetConnection(peer.rank, label))
    return EndReason(code, f"{text}: {UNREACHABLE}")


def correct_reset(reason: EndReason, mpirun_output: str) -> EndReason:
    """Return the reason for the end, corrected if mpirun reports that the keeper was killed.

    The kernel also resets the connection of a killed keeper that had not yet read everything.
    """
    if reason.reset is None or killed_rank(mpirun_output) != reason.reset.rank:
        return reason
    return _killed(reason.reset.label)


def _killed(label: str) -> EndReason:
    return EndReason(128 + signal.SIGKILL, f"{label} was killed by another process")


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first failure that does not blame another rank.

    A dying process closes its sockets before its keeper notices. Another rank may fail because of that, and
    ddlrun's order reach the first one's keeper meanwhile. The cause is then the rank that was ordered to end but
    has an exit code of its own.
    """
    listed = list(ends)
    failed = [end for end in listed if end.exit_code and not end.ordered]
    ordered = [end for end in listed if end.exit_code and end.ordered and end.exit_code not in ORDERED_CODES]
    return next((end for end in (*failed, *ordered) if not _is_collateral(end)), next(iter(failed), None))


def _is_collateral(end: RankEnd) -> bool:
    return is_collateral(end.exit_code, end.tail)


def ended_by_mpirun(exit_code: int, output: str, ends: Mapping[int, RankEnd]) -> tuple[EndReason, str | None]:
    """Return the reason why mpirun ended while ranks were running, or failed without a rank's failure.

    Args:
        exit_code: mpirun's exit code, or minus the signal that ended it.
        output: The last of its output.
        ends: The ends of ranks so far.

    Returns:
        The reason, and the host that mpirun lost, if it lost one.
    """
    lost = lost_host(output)
    if lost is not None:
        host, connection = lost
        causes = "something there was killed, the host went down, or the network failed"
        code = UnreachableError.exit_code
        return EndReason(code, f"mpirun lost host {host}, {connection}: {causes}"), host
    improper = improper_end(output)
    if improper is not None:
        rank, host = improper
        with_code = f" with {ends[rank].exit_code}" if rank in ends else ""
        text = f"rank {rank} on {host} exited{with_code} while others were in MPI, without MPI_Finalize"
        return EndReason(exit_code or 1, text), None
    if exit_code < 0:
        number = -exit_code
        return EndReason(128 + number, f"mpirun was killed by {signal_name(number)}", number), None
    return EndReason(exit_code or 1, None if exit_code else "mpirun ended while ranks were still running"), None
