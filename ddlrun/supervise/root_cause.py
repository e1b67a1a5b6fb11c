"""The cause of a job's end: a rank that failed, a host that was lost, mpirun itself, or a request."""

import errno
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import UnreachableError
from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import is_collateral
from ddlrun.process_managers.agents import lost_agent
from ddlrun.process_managers.openmpi import improper_end, killed_rank, lost_host
from ddlrun.supervise.heartbeat import UNREACHABLE
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.missing_daemons import find_name
from ddlrun.wording import signal_name

# 128 + SIGINT, SIGKILL, SIGTERM: the exit codes of programs that a keeper ended.
ORDERED_CODES = (130, 137, 143)
RESET = "a firewall or another device on the way reset it, or the host was restarted"
SPAWN_REFUSED = "MPI_Comm_spawn found no free slot; --spawn-slots N lets the job start N more processes per host"


class ClosedConnection(NamedTuple):
    """The connection of a rank's keeper that closed, or was reset, while the program ran."""

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
    closed: ClosedConnection | None = None
    """The connection whose end is the reason; mpirun may know its cause."""
    lost_host: str | None = None
    """The host that mpirun lost."""


class MpirunEnd(NamedTuple):
    """The end of mpirun."""

    exit_code: int
    """Its exit code, or minus the signal that ended it; 0 while it runs."""
    output: str
    """The last of its output."""
    ended_by_ddlrun: bool = False
    """Whether ddlrun sent it SIGTERM or SIGKILL."""
    name: str = "mpirun"
    """The name of the process manager in messages."""
    host_names: Sequence[str] = ()
    """The hosts of the job."""


def explain_closed_connection(peer: KeeperConnection) -> EndReason:
    """Return the reason for the end of a job when a keeper's connection is closed while its program runs."""
    label = f"rank {peer.rank} on {peer.host}"
    code = UnreachableError.exit_code
    if peer.farewell:
        return EndReason(code, f"{label} had to end: {peer.farewell}")
    connection = ClosedConnection(peer.rank, label)
    if peer.error is None:
        return _killed(connection)
    text = f"the connection of {label} broke ({os.strerror(peer.error)})"
    if peer.error == errno.ECONNRESET:
        return EndReason(code, f"{text}: {RESET}", closed=connection)
    return EndReason(code, f"{text}: {UNREACHABLE}")


def explain_by_mpirun(reason: EndReason, mpirun: MpirunEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason for the end, corrected if mpirun knows why a keeper's connection closed.

    - The kernel also resets the connection of a killed keeper that had not yet read everything.
    - An mpirun that was killed or has lost a host kills the keepers of all hosts. Their connections may close before
      its end is noticed, or before the keeper on the lost host has ended its program.
    """
    if reason.closed is None:
        return reason
    if killed_rank(mpirun.output) == reason.closed.rank:
        return _killed(reason.closed)
    lost = lost_agent(mpirun.output) or lost_host(mpirun.output)
    if lost is not None or (mpirun.exit_code < 0 and not mpirun.ended_by_ddlrun):
        return ended_by_mpirun(mpirun, ends)
    return reason


def _killed(connection: ClosedConnection) -> EndReason:
    text = f"{connection.label} was killed by another process"
    return EndReason(128 + signal.SIGKILL, text, closed=connection)


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


def ended_by_mpirun(mpirun: MpirunEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason why mpirun ended while ranks were running, or failed without a rank's failure.

    Args:
        mpirun: The end of mpirun.
        ends: The ends of ranks so far.
    """
    agent = lost_agent(mpirun.output)
    if agent is not None:
        host, reason = agent
        return EndReason(UnreachableError.exit_code, f"host {host} was lost: {reason}", lost_host=host)
    lost = lost_host(mpirun.output)
    if lost is not None:
        address, connection = lost
        host = find_name(address, mpirun.host_names)
        causes = "something there was killed, the host went down, or the network failed"
        code = UnreachableError.exit_code
        return EndReason(code, f"mpirun lost host {host}, {connection}: {causes}", lost_host=host)
    improper = improper_end(mpirun.output)
    if improper is not None:
        rank, host = improper
        with_code = f" with {ends[rank].exit_code}" if rank in ends else ""
        text = f"rank {rank} on {host} exited{with_code} while others were in MPI, without MPI_Finalize"
        return EndReason(mpirun.exit_code or 1, text)
    if mpirun.exit_code < 0:
        number = -mpirun.exit_code
        return EndReason(128 + number, f"{mpirun.name} was killed by {signal_name(number)}", number)
    if mpirun.exit_code == 0:
        return EndReason(1, f"{mpirun.name} ended while ranks were still running")
    return EndReason(mpirun.exit_code)
