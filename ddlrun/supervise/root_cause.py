"""The cause of a job's end: a rank that failed, a host that was lost, mpirun itself, or a request."""

import errno
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from ddlrun.errors import UnreachableError
from ddlrun.managers.openmpi import (
    SESSION,
    abort_call,
    aborting_rank,
    ended_ssh_client,
    failed_daemon,
    improper_end,
    killed_rank,
    lost_host,
    reports_failure,
    unwritable_folder,
)
from ddlrun.managers.openmpi.missing_daemons import find_name
from ddlrun.managers.own import killed_keeper, lost_agent, unconnected_rank, unfinished_rank
from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import find_failure, is_collateral
from ddlrun.supervise.heartbeat import UNREACHABLE
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.wording import signal_name

RESET = "a firewall or another device on the way reset it, or the host was restarted"
CAUSES = "there was killed, the host went down, or the network failed"
SIGNALLED = "was ended by SIGTERM, SIGINT or SIGHUP, which ddlrun did not send"
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
    examined: bool = False
    """Whether the ranks are examined before the job is ended."""


class ManagerEnd(NamedTuple):
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
    ended_ssh_client: str | None = None
    """The host of the ssh client that was the first to end after the start of a rank."""


def explain_closed_connection(peer: KeeperConnection) -> EndReason:
    """Return the reason for the end of a job when a keeper's connection is closed while its program runs."""
    label = f"rank {peer.rank} on {peer.host}"
    code = UnreachableError.exit_code
    if peer.farewell:
        return EndReason(code, f"{label} had to end: {peer.farewell}")
    connection = ClosedConnection(peer.rank, label)
    if peer.error is None:
        return _killed(label, connection)
    text = f"the connection of {label} broke ({os.strerror(peer.error)})"
    if peer.error == errno.ECONNRESET:
        return EndReason(code, f"{text}: {RESET}", closed=connection)
    return EndReason(code, f"{text}: {UNREACHABLE}")


def explain_by_mpirun(reason: EndReason, mpirun: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason for the end, corrected if mpirun knows why a keeper's connection closed, or a rank failed.

    - The kernel also resets the connection of a killed keeper that had not yet read everything.
    - An mpirun that was killed or has lost a host kills the keepers of all hosts. Their connections may close before
      its end is noticed, or before the keeper on the lost host has ended its program.
    - A rank whose MPI has lost another one, or mpirun, may fail before its keeper, which has lost mpirun, ends it.
    - A keeper whose connection was reset ends its program. Of that, mpirun may hear before ddlrun, or alone.
    - After a rank's call of MPI_Abort, mpirun kills all keepers. On a busy machine it does so before they have reported
      the ends of their programs. It also kills them after a rank's MPI has aborted the job on an error. This explains
      a connection that was reset, but not one that was closed: that a user killed this keeper may be the error.
    """
    if reason.closed is None:
        lost = _find_loss(mpirun) is not None or _was_killed(mpirun) or _is_unheard(mpirun, ends)
        cut_off = lost and _is_cut_off(reason, ends.values())
        return ended_by_mpirun(mpirun, ends) if cut_off or reason == _find_rank(mpirun, {}) else reason
    killed = killed_rank(mpirun.output)
    if reason.closed.rank in (killed and killed[0], killed_keeper(mpirun.output)):
        return _killed(reason.closed.label, reason.closed)
    abort = abort_call(mpirun.output)
    if abort is not None:
        rank, code = abort
        return EndReason(code & 255 or 1, f"rank {rank} called MPI_Abort with {code}")
    was_reset = reason.exit_code == UnreachableError.exit_code
    if _find_loss(mpirun) is not None or _was_killed(mpirun) or (was_reset and aborting_rank(mpirun.output)):
        return ended_by_mpirun(mpirun, ends)
    if _may_be_signalled(mpirun, ends.values()):
        return EndReason(mpirun.exit_code, f"{mpirun.name} {SIGNALLED}")
    return reason


def _is_unheard(mpirun: ManagerEnd, ends: Mapping[int, RankEnd]) -> bool:
    """Return True if a rank left MPI whose keeper has reported no end: it had ended the rank, but could not say so."""
    left = _rank_that_left(mpirun)
    return left is not None and left[0] not in ends


def _rank_that_left(mpirun: ManagerEnd) -> tuple[int, str] | None:
    return improper_end(mpirun.output) or unfinished_rank(mpirun.output)


def _was_killed(mpirun: ManagerEnd) -> bool:
    """Return True if a signal that ddlrun did not send ended mpirun."""
    return mpirun.exit_code < 0 and not mpirun.ended_by_ddlrun


def _is_cut_off(reason: EndReason, ends: Iterable[RankEnd]) -> bool:
    """Return True if the job ends because of a rank that had lost another one, or whose keeper had lost mpirun."""
    root = root_of(ends) if reason.reason is None and reason.signal is None else None
    return root is not None and (root.reason != "" or is_collateral(root))


def _killed(label: str, connection: ClosedConnection | None = None) -> EndReason:
    return EndReason(128 + signal.SIGKILL, f"{label} was killed by another process", closed=connection)


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first failure that does not blame another rank.

    A dying process closes its sockets before its keeper notices. Another rank may fail because of that, and
    ddlrun's order reach the first one's keeper meanwhile. The cause is then the rank that was ordered to end but
    has an exit code of its own; or else one with a traceback, whose Python was still waiting for its own threads or
    processes.
    """
    listed = list(ends)
    failed = [end for end in listed if end.exit_code and not end.ordered]
    ordered = [end for end in listed if end.exit_code and end.ordered and not end.ended_by_order]
    ending = (end for end in listed if failed and end.ended_by_order and _has_own_failure(end, failed[0]))
    own = (end for end in chain(failed, ordered, ending) if not is_collateral(end))
    return next(own, next(iter(failed), None))


def _has_own_failure(end: RankEnd, other: RankEnd) -> bool:
    """Return True for a failure that the other rank did not print, too; a caught exception is printed by both."""
    failure = find_failure(end.tail)
    return failure is not None and failure.message not in other.tail


def ended_by_mpirun(mpirun: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason why mpirun ended while ranks were running, or failed without a rank's failure.

    Args:
        mpirun: The end of mpirun.
        ends: The ends of ranks so far.
    """
    problem = _find_loss(mpirun) or _explain_failed_start(mpirun) or _find_rank(mpirun, ends)
    if problem is not None:
        return problem
    if mpirun.exit_code < 0:
        number = -mpirun.exit_code
        sender = "" if mpirun.ended_by_ddlrun else ", which ddlrun did not send"
        return EndReason(128 + number, f"{mpirun.name} was killed by {signal_name(number)}{sender}", number)
    if mpirun.exit_code == 0:
        return EndReason(1, f"{mpirun.name} ended while ranks were still running")
    if ends and _may_be_signalled(mpirun, ends.values()):
        return EndReason(mpirun.exit_code, f"{mpirun.name} {SIGNALLED}")
    return EndReason(mpirun.exit_code)


def _find_rank(mpirun: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason | None:
    """Return the reason for the end where mpirun, or ddlrun's own process manager, names a rank; None if not."""
    code = mpirun.exit_code or 1
    left = _rank_that_left(mpirun)
    if left is not None:
        rank, host = left
        if rank not in ends:
            return EndReason(UnreachableError.exit_code, f"the connection of rank {rank} on {host} broke: {RESET}")
        with_code = f"with {ends[rank].exit_code}"
        return EndReason(
            code, f"rank {rank} on {host} exited {with_code} while others were in MPI, without MPI_Finalize"
        )
    killed, aborting = killed_rank(mpirun.output), aborting_rank(mpirun.output)
    if killed is not None:
        rank, host = killed
        return _killed(f"rank {rank} on {host}")
    if aborting is None:
        return None
    rank, host = aborting
    return EndReason(code, f"rank {rank} on {host} aborted the job: it called MPI_Abort, or its MPI did after an error")


def _explain_failed_start(mpirun: ManagerEnd) -> EndReason | None:
    """Return the reason why mpirun or a daemon could not start; None if mpirun's output shows none."""
    code = mpirun.exit_code or 1
    folder = unwritable_folder(mpirun.output)
    if folder is not None:
        place = f"{folder.path} on {folder.host or os.uname().nodename}"
        text = f"Open MPI cannot make its folder {place}: {folder.problem}; name another place there: TMPDIR"
        return EndReason(code, text)
    daemon = failed_daemon(mpirun.output)
    if daemon is None:
        return None
    host, status = daemon
    host = find_name(host, mpirun.host_names)
    text = f"mpirun's daemon on {host} ended with {status} before it had reached mpirun; try: ddlrun check {host}"
    return EndReason(code, text)


def _may_be_signalled(mpirun: ManagerEnd, ends: Iterable[RankEnd]) -> bool:
    """Return True if mpirun has ended as after a signal that it handles: all ranks had to end, and it gives no reason.

    No record shows which signal a process has handled.
    """
    silent = mpirun.exit_code == 1 and not mpirun.ended_by_ddlrun and not reports_failure(mpirun.output)
    return silent and all(end.ordered or not end.exit_code for end in ends)


def _find_loss(mpirun: ManagerEnd) -> EndReason | None:
    """Return the reason for the end where mpirun, or ddlrun's own process manager, has lost a host or its session."""
    code = UnreachableError.exit_code
    agent = lost_agent(mpirun.output)
    if agent is not None:
        host, reason = agent
        return EndReason(code, f"host {host} was lost: {reason}", lost_host=host)
    lost = lost_host(mpirun.output)
    if lost is not None:
        address, connection = lost
        host = find_name(address, mpirun.host_names)
        return EndReason(code, f"{mpirun.name} lost host {host}, {connection}: something {CAUSES}", lost_host=host)
    unconnected = unconnected_rank(mpirun.output)
    if unconnected is not None:
        return EndReason(code, f"{unconnected} cannot reach ddlrun")
    return _explain_ssh_client(mpirun)


def _explain_ssh_client(mpirun: ManagerEnd) -> EndReason | None:
    """Return the reason for the end where mpirun has ended as one of its ssh clients did."""
    code = UnreachableError.exit_code
    client = ended_ssh_client(mpirun.output, mpirun.exit_code)
    name = None if client is None else client.host or mpirun.ended_ssh_client
    if client is None or name is None:
        return None
    host = find_name(name, mpirun.host_names)
    if not client.killed:
        text = f"{mpirun.name} lost host {host}, {SESSION}: its ssh client or something {CAUSES}"
        return EndReason(code, text, lost_host=host)
    number = "a signal" if client.signal is None else signal_name(client.signal)
    return EndReason(code, f"{mpirun.name} lost its ssh session to {host}: the ssh client was killed by {number}")
