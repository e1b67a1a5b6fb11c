"""The cause of a job's end: a rank that failed, a host that was lost, the process manager itself, or a request."""

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from ddlrun.errors import UnreachableError
from ddlrun.managers.end import EndCode, EndFinding, ManagerEnd
from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import find_failure, is_collateral
from ddlrun.supervise.heartbeat import UNREACHABLE
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.wording import signal_name

RESET = "a firewall or another device on the way reset it, or the host was restarted"
SIGNALLED = "was ended by SIGTERM, SIGINT or SIGHUP, which ddlrun did not send"
SPAWN_REFUSED = "MPI_Comm_spawn found no free slot; `--spawn-slots` N lets the job start N more processes per host"


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
    """The connection whose end is the reason; the process manager may know its cause."""
    lost_host: str | None = None
    """The host that the process manager lost."""
    examined: bool = False
    """Whether the ranks are examined before the job is ended."""


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


def explain_by_manager(reason: EndReason, manager: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason for the end, corrected if the process manager knows why a connection closed, or a rank failed.

    - The kernel also resets the connection of a killed keeper that had not yet read everything.
    - A process manager that was killed or has lost a host kills the keepers of all hosts. Their connections may close
      before its end is noticed, or before the keeper on the lost host has ended its program.
    - A rank whose MPI has lost another one, or the process manager, may fail before its keeper ends it for that reason.
    - A keeper whose connection was reset ends its program. The process manager may notice that before ddlrun, or alone.
    - Slurm kills all keepers of a step that it cancels.
    - After a rank's call of MPI_Abort, the process manager kills all keepers. On a busy machine it does so before they
      have reported the ends of their programs. It also kills them after a rank's MPI has aborted the job on an error.
      This explains a connection that was reset, but not one that was closed: perhaps a user killed this keeper, and
      that was the error.
    """
    lost = _find_loss(manager, ends) is not None or _was_killed(manager)
    if reason.closed is None:
        cut_off = (lost or _is_unheard(manager, ends)) and _is_cut_off(reason, ends.values())
        return ended_by_manager(manager, ends) if cut_off or reason == _find_rank(manager, {}) else reason
    killed, abort = manager.find(EndCode.KILLED_RANK), manager.find(EndCode.ABORT_CALL)
    cancelled = manager.find(EndCode.CANCELLED_STEP) is not None and not manager.ended_by_ddlrun
    if killed is not None and killed.rank == reason.closed.rank and not cancelled:
        return _killed(reason.closed.label, reason.closed)
    if abort is not None:
        return EndReason(abort.number & 255 or 1, f"rank {abort.rank} called MPI_Abort with {abort.number}")
    was_reset = reason.exit_code == UnreachableError.exit_code
    if lost or cancelled or (was_reset and manager.find(EndCode.ABORTING_RANK) is not None):
        return ended_by_manager(manager, ends)
    if _may_be_signalled(manager, ends.values()):
        return EndReason(manager.exit_code, f"{manager.name} {SIGNALLED}")
    return reason


def _is_unheard(manager: ManagerEnd, ends: Mapping[int, RankEnd]) -> bool:
    """Return True if a rank left MPI whose keeper has reported no end: it had ended the rank, but could not say so."""
    left = manager.find(EndCode.UNFINISHED_RANK)
    return left is not None and left.rank not in ends


def _was_killed(manager: ManagerEnd) -> bool:
    """Return True if a signal that ddlrun did not send ended the process manager."""
    return manager.exit_code < 0 and not manager.ended_by_ddlrun


def _is_cut_off(reason: EndReason, ends: Iterable[RankEnd]) -> bool:
    """Return True if the job ends because of a rank that had lost another one, or whose keeper had lost the manager."""
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


def ended_by_manager(manager: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason:
    """Return the reason why the process manager ended while ranks were running, or failed without a rank's failure."""
    code = 128 - manager.exit_code if manager.exit_code < 0 else manager.exit_code or 1
    failure = manager.find(EndCode.FAILED_START) or manager.find(EndCode.CANCELLED_STEP)
    failed = None if failure is None else EndReason(code, failure.text)
    problem = _find_loss(manager, ends) or failed or _find_rank(manager, ends)
    if problem is not None:
        return problem
    if manager.exit_code < 0:
        number = -manager.exit_code
        sender = "" if manager.ended_by_ddlrun else ", which ddlrun did not send"
        return EndReason(128 + number, f"{manager.name} was killed by {signal_name(number)}{sender}", number)
    if manager.exit_code == 0:
        return EndReason(1, f"{manager.name} ended while ranks were still running")
    if ends and _may_be_signalled(manager, ends.values()):
        return EndReason(manager.exit_code, f"{manager.name} {SIGNALLED}")
    return EndReason(manager.exit_code)


def _find_loss(manager: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason | None:
    """Return the reason for the end where the manager has lost a host or its session, or a rank has lost ddlrun."""
    code = UnreachableError.exit_code
    host, session = manager.find(EndCode.LOST_HOST), manager.find(EndCode.LOST_SESSION)
    if host is not None:
        return EndReason(code, host.text, lost_host=host.host)
    for exited in manager.findings:
        # The keeper of a rank that has started reports the end to ddlrun before it exits.
        if exited.code is EndCode.EXITED_RANK and exited.number == code and exited.rank not in ends:
            return EndReason(code, f"{_label(exited)} cannot reach ddlrun")
    return None if session is None else EndReason(code, session.text)


def _find_rank(manager: ManagerEnd, ends: Mapping[int, RankEnd]) -> EndReason | None:
    """Return the reason for the end where the process manager names a rank; None if not."""
    code = manager.exit_code or 1
    left, killed, aborting = map(manager.find, (EndCode.UNFINISHED_RANK, EndCode.KILLED_RANK, EndCode.ABORTING_RANK))
    if left is not None and left.rank not in ends:
        return EndReason(UnreachableError.exit_code, f"the connection of {_label(left)} broke: {RESET}")
    if left is not None:
        how = f"exited with {ends[left.rank].exit_code} while others were in MPI, without MPI_Finalize"
        return EndReason(code, f"{_label(left)} {how}")
    if killed is not None:
        return _killed(_label(killed))
    if aborting is None:
        return None
    return EndReason(code, f"{_label(aborting)} aborted the job: it called MPI_Abort, or its MPI did after an error")


def _label(finding: EndFinding) -> str:
    return f"rank {finding.rank} on {finding.host}"


def _may_be_signalled(manager: ManagerEnd, ends: Iterable[RankEnd]) -> bool:
    """Return True if the manager may have handled a signal: it gives no reason, and no rank failed of its own accord.

    No record shows which signal a process has handled.
    """
    own = [finding for finding in manager.findings if finding.code is not EndCode.EXITED_RANK]
    silent = manager.exit_code == 1 and not manager.ended_by_ddlrun and not own
    return silent and all(end.ordered or not end.exit_code for end in ends)
