"""The cause of a job's end: one table, from the evidence to the exit code, in the order in which it is tried."""

import enum
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ddlrun import errors
from ddlrun.managers.end import EndCode, EndFinding, ManagerEnd
from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import is_collateral
from ddlrun.supervise.ranks import root_of
from ddlrun.wording import signal_name

Fields = dict[str, Any]
EXIT_UNREAD = errors.EXIT_SIGNAL + signal.SIGPIPE
OF_MANAGER = "that of the manager, or 1"
RESET = "a firewall or another device on the way reset it, or the host was restarted"
REACHABLE = "reachable, but ddlrun's processes there do not run: too busy (see `--heartbeat`), or stopped"
UNREACHABLE = "down, or cut off from the network"


class EndReason(NamedTuple):
    """The reason for the end of a job."""

    cause: "EndCause"
    exit_code: int
    """ddlrun's exit code."""
    text: str | None
    """None: the ranks' ends, or the signal, say it."""
    details: Fields
    """The fields of its text, such as the rank and its label where a connection ended."""

    @property
    def requested(self) -> bool:
        """Whether the user or a limit requested the end."""
        return self.cause.value.requested

    @property
    def signal(self) -> int | None:
        """The signal that did it."""
        return self.details.get("signal")

    @property
    def lost_host(self) -> str | None:
        """The host that the process manager lost."""
        return self.details["host"] if self.cause in (EndCause.LOST_HOST, EndCause.LOST_DAEMON) else None

    @property
    def by_rank(self) -> bool:
        """Whether the ranks' ends say it."""
        return self.text is None and self.signal is None


class Evidence(NamedTuple):
    """What is known of a job when its process manager has ended."""

    first: EndReason | None
    """The reason why ddlrun ended the job; None: it did not."""
    manager: ManagerEnd
    ends: Mapping[int, RankEnd]
    missing: int = 0
    """The number of ranks whose ends are unknown."""
    running: bool = False
    """Whether keepers are still connected."""
    pause: str | None = None
    """Why ddlrun may have lost ranks and the process manager just now: it did not run."""
    cut_off: Mapping[str, RankEnd] = MappingProxyType({})
    """Host -> the end of a rank there whose keeper has ended it, as it has lost ddlrun or the process manager."""

    @property
    def closed(self) -> bool:
        """Whether ddlrun ended the job as a keeper's connection was closed or reset."""
        return self.first is not None and self.first.cause in (EndCause.CLOSED_CONNECTION, EndCause.RESET_CONNECTION)

    @property
    def cancelled(self) -> bool:
        """Whether Slurm has cancelled the step, for which it kills all keepers."""
        return self.manager.find(EndCode.CANCELLED_STEP) is not None and not self.manager.ended_by_ddlrun

    @property
    def lost(self) -> bool:
        """Whether the process manager was killed, or has lost a host, or a keeper that lost ddlrun."""
        killed = self.manager.exit_code < 0 and not self.manager.ended_by_ddlrun
        return killed or bool(_lost_host(self) or _unreached(self))

    @property
    def asks_manager(self) -> bool:
        """Whether the process manager knows the cause better than the first reason.

        - A process manager that was killed or has lost a host kills the keepers of all hosts. Their connections may
          close before its end is noticed, or before the keeper on the lost host has ended its program.
        - A rank whose MPI has lost another one, or the manager, may fail before its keeper ends it for that reason.
        - A keeper whose connection was reset ends its program. The manager may notice that before ddlrun, or alone.
        - The manager kills all keepers after a rank's MPI has aborted the job on an error. This explains a connection
          that was reset, but not one that was closed: perhaps a user killed this keeper, and that was the error.
        - A rank that the manager named may have reported its end since.
        - A manager that has lost a daemon ends the others. Their keepers may report that before the one on its host.
        """
        first = self.first
        if first is None or first.cause in (EndCause.UNHEARD_RANK, EndCause.KILLED_RANK, EndCause.ABORTING_RANK):
            return True
        if first.cause in (EndCause.CUT_OFF, EndCause.LOST_HOST):
            return _lost_daemon(self) is not None
        if self.closed:
            was_reset = first.cause is EndCause.RESET_CONNECTION
            return self.lost or self.cancelled or (was_reset and self.find(EndCode.ABORTING_RANK) is not None)
        root = root_of(self.ends.values()) if first.by_rank else None
        is_cut_off = root is not None and (root.reason != "" or is_collateral(root))
        return is_cut_off and (self.lost or _unheard(self) is not None)

    def find(self, code: EndCode, condition: Callable[[EndFinding], bool] = lambda _: True) -> Fields | None:
        """Return the fields of the process manager's first finding of a kind that meets a condition."""
        findings = (finding for finding in self.manager.findings if finding.code is code and condition(finding))
        return next(({**it._asdict(), "label": f"rank {it.rank} on {it.host}"} for it in findings), None)


def _ended_by_itself(evidence: Evidence) -> Fields | None:
    """Return fields if ddlrun did not end the job, and its process manager ended well, or lost ddlrun."""
    manager, heard = evidence.manager, len(evidence.ends)
    clean = manager.exit_code == 0 or manager.ended_by_ddlrun or evidence.pause is not None
    by_itself = evidence.first is None and not evidence.running and clean
    return {"heard": heard, "ranks": heard + evidence.missing} if by_itself else None


def _killed_keeper(evidence: Evidence) -> Fields | None:
    first = evidence.first
    if first is None or not evidence.closed or evidence.cancelled:
        return None
    return evidence.find(EndCode.KILLED_RANK, lambda it: it.rank == first.details["rank"]) and first.details


def _abort_call(evidence: Evidence) -> Fields | None:
    call = evidence.find(EndCode.ABORT_CALL) if evidence.closed else None
    return call and {**call, "exit_code": call["number"] & 255 or 1}


def _lost_host(evidence: Evidence) -> Fields | None:
    return evidence.find(EndCode.LOST_HOST) or evidence.find(EndCode.LOST_DAEMON)


def _lost_daemon(evidence: Evidence) -> Fields | None:
    daemon = evidence.find(EndCode.LOST_DAEMON, lambda it: it.host in evidence.cut_off)
    if daemon is None or evidence.find(EndCode.LOST_HOST, lambda it: it.host == daemon["host"]):
        return None
    end = evidence.cut_off[daemon["host"]]
    return {**daemon, "label": f"rank {end.rank} on {end.host}", "why": end.reason}


def _unreached(evidence: Evidence) -> Fields | None:
    # The keeper of a rank that has started reports the end to ddlrun before it exits.
    ends = evidence.ends
    return evidence.find(EndCode.EXITED_RANK, lambda it: it.number == errors.EXIT_UNREACHABLE and it.rank not in ends)


def _unheard(evidence: Evidence) -> Fields | None:
    return evidence.find(EndCode.UNFINISHED_RANK, lambda it: it.rank not in evidence.ends)


def _unfinished(evidence: Evidence) -> Fields | None:
    fields = evidence.find(EndCode.UNFINISHED_RANK, lambda it: it.rank in evidence.ends)
    return fields and {**fields, "own_code": evidence.ends[fields["rank"]].exit_code}


def _killed_manager(evidence: Evidence) -> Fields | None:
    number = -evidence.manager.exit_code
    sender = "" if evidence.manager.ended_by_ddlrun else ", which ddlrun did not send"
    return {"signal": number, "by": f"{signal_name(number)}{sender}"} if number > 0 else None


def _signalled_manager(evidence: Evidence) -> Fields | None:
    """Return fields if the manager may have handled a signal: it gives no reason, and no rank failed by itself.

    No record shows which signal a process has handled.
    """
    manager, ends = evidence.manager, evidence.ends.values()
    own = [finding for finding in manager.findings if finding.code is not EndCode.EXITED_RANK]
    silent = manager.exit_code == 1 and not manager.ended_by_ddlrun and not own
    counts = evidence.closed or (evidence.asks_manager and evidence.ends)
    return {} if counts and silent and all(end.ordered or not end.exit_code for end in ends) else None


class CauseRow(NamedTuple):
    """A row of the table."""

    evidence: str
    text: str
    """With the names of fields in braces; empty: the ranks' ends, or the signal, say it."""
    exit_code: int | str
    """A word describes the field exit_code."""
    find: Callable[[Evidence], Fields | None] | EndCode | None = None
    """Return the fields if the evidence is there; None: ddlrun ends the job at the event, the first of which counts."""
    of_manager: bool = False
    """Whether it counts only where the process manager knows the cause better than the first reason."""
    requested: bool = False
    """Whether the user or a limit requested the end."""


class EndCause(enum.Enum):
    """The causes, in the order in which they are tried."""

    # fmt: off
    # Events: the first one ends the job.
    RANK_FAILED = CauseRow("a rank exits with a nonzero code, or by a signal", "", "that of the rank")
    SIGNAL = CauseRow("ddlrun receives a signal", "", "128 + the signal", requested=True)
    TIME_LIMIT = CauseRow("the time of `--timeout` is over",
        "the time limit of {seconds:g} s (`--timeout`)", errors.EXIT_TIMED_OUT, requested=True)
    LATE_START = CauseRow("no other rank starts within `--start-timeout`",
        "{ranks} did not start in {seconds:g} s (`--start-timeout`){daemons}", errors.EXIT_UNREACHABLE)
    STALL = CauseRow("no rank prints for `--stall-timeout`, and the examination finds none that moves or is busy",
        "no rank printed anything for {seconds:g} s ({option}): {explanation}", errors.EXIT_STALLED)
    UNREAD_STREAM = CauseRow("the reader of ddlrun's output is gone",
        "{stream} is no longer read", EXIT_UNREAD, requested=True)
    FAILED_STREAM = CauseRow("ddlrun's output cannot be written", "{stream}: {error}", 1, requested=True)
    ENDED_SESSION = CauseRow("the readers of both output streams have been gone for 5 s",
        "output is no longer read: the session has ended", EXIT_UNREAD, requested=True)
    SILENT_HOST = CauseRow("a keeper sends no heartbeat, and its host acknowledges none",
        f"no sign of life from {{hosts}} for {{seconds:g}} s: {UNREACHABLE}", errors.EXIT_UNREACHABLE)
    SILENT_KEEPER = CauseRow("a keeper sends no heartbeat, but its host acknowledges ddlrun's",
        f"no sign of life from {{hosts}} for {{seconds:g}} s: {REACHABLE}", errors.EXIT_UNREACHABLE)
    CUT_OFF = CauseRow("a keeper ends its rank, as it has lost ddlrun or the process manager",
        "{label} had to end: {why}", errors.EXIT_UNREACHABLE)
    SIGNALLED_KEEPER = CauseRow("a keeper has received a signal, and nothing else fails for 5 s",
        "{label} had to end: its keeper received a signal", "that of the rank, or 1")
    CLOSED_CONNECTION = CauseRow("a keeper's connection is closed while its rank runs",
        "{label} was killed by another process", errors.EXIT_KILLED)
    RESET_CONNECTION = CauseRow("a keeper's connection is reset while its rank runs",
        f"the connection of {{label}} broke ({{error}}): {RESET}", errors.EXIT_UNREACHABLE)
    BROKEN_CONNECTION = CauseRow("a keeper's connection ends with another error",
        f"the connection of {{label}} broke ({{error}}): the host is {UNREACHABLE}", errors.EXIT_UNREACHABLE)
    DISTURBED_CONNECTION = CauseRow("a keeper's connection carries something other than its messages",
        "the connection of {label} was disturbed or attacked: {problem}", errors.EXIT_UNREACHABLE)
    TOO_MANY_FILES = CauseRow("ddlrun may open no more files",
        "too many open files for {ranks} ranks; raise ulimit -n", errors.EXIT_PREFLIGHT)
    REFUSED_SPAWN = CauseRow("the process manager refuses MPI_Comm_spawn",
        "MPI_Comm_spawn found no free slot; `--spawn-slots` N lets the job start N more processes per host",
        errors.EXIT_PLACEMENT)
    # The process manager has ended, perhaps before all ranks.
    SUCCESS = CauseRow("all ranks and the manager end with 0", "", 0,
        lambda it: None if it.missing else _ended_by_itself(it))
    PAUSE = CauseRow("ddlrun did not run when the manager ended", "{pause}", errors.EXIT_UNREACHABLE,
        lambda it: {"pause": it.pause} if it.pause is not None and it.first is None else None)
    # The connection of a keeper was closed or reset.
    KILLED_KEEPER = CauseRow("connection: SIGKILL has ended that keeper",
        "{label} was killed by another process", errors.EXIT_KILLED, _killed_keeper)
    ABORT_CALL = CauseRow("connection: a rank has called MPI_Abort",
        "rank {rank} called MPI_Abort with {number}", "that of the call, or 1", _abort_call)
    # The process manager ended first, or knows the cause better than the first reason.
    LOST_DAEMON = CauseRow("the manager has lost its daemon on a host, where a keeper has ended its rank for that",
        "{label} had to end: {why}", errors.EXIT_UNREACHABLE, _lost_daemon, of_manager=True)
    LOST_HOST = CauseRow("a host is lost", "{text}", errors.EXIT_UNREACHABLE, _lost_host, of_manager=True)
    UNREACHED = CauseRow("a keeper that has reported nothing exits with 3",
        "{label} cannot reach ddlrun", errors.EXIT_UNREACHABLE, _unreached, of_manager=True)
    FAILED_START = CauseRow("the manager could not start", "{text}", OF_MANAGER, EndCode.FAILED_START, of_manager=True)
    CANCELLED_STEP = CauseRow("Slurm has ended the manager's step",
        "{text}", OF_MANAGER, EndCode.CANCELLED_STEP, of_manager=True)
    UNHEARD_RANK = CauseRow("a rank left MPI, and its keeper has not reported its end",
        f"the connection of {{label}} broke: {RESET}", errors.EXIT_UNREACHABLE, _unheard, of_manager=True)
    UNFINISHED_RANK = CauseRow("a rank left MPI, and its keeper has reported its end",
        "{label} exited with {own_code} while others were in MPI, without MPI_Finalize", OF_MANAGER, _unfinished,
        of_manager=True)
    KILLED_RANK = CauseRow("SIGKILL has ended a keeper",
        "{label} was killed by another process", errors.EXIT_KILLED, EndCode.KILLED_RANK, of_manager=True)
    ABORTING_RANK = CauseRow("a rank has aborted",
        "{label} aborted the job: it called MPI_Abort, or its MPI did after an error", OF_MANAGER,
        EndCode.ABORTING_RANK, of_manager=True)
    MISSING_ENDS = CauseRow("the manager ends with 0, and ranks have not reported their ends",
        "only {heard} of {ranks} ranks reported how they ended", 1, _ended_by_itself)
    KILLED_MANAGER = CauseRow("a signal has ended the manager",
        "{name} was killed by {by}", "128 + the signal", _killed_manager, of_manager=True)
    SIGNALLED_MANAGER = CauseRow("the manager ends with 1 without a reason, and no rank has failed",
        "{name} exited with 1, perhaps after SIGTERM, SIGINT or SIGHUP from another process", 1, _signalled_manager)
    EARLY_MANAGER = CauseRow("the manager ends with 0 while ranks are running",
        "{name} ended while ranks were still running", 1, lambda it: None if it.manager.exit_code else {},
        of_manager=True)
    FAILED_MANAGER = CauseRow("none of these", "", OF_MANAGER, lambda _: {}, of_manager=True)
    # fmt: on

    def reason(self, **fields: Any) -> EndReason:  # noqa: ANN401 - of any field
        """Return the reason with this cause, and with the fields that its row names."""
        row = self.value
        code = fields["exit_code"] if isinstance(row.exit_code, str) else row.exit_code
        return EndReason(self, code, row.text.format(**fields) or None, fields)


def explain(evidence: Evidence) -> EndReason:
    """Return the reason for the end of a job whose process manager has ended: the first row that the evidence meets."""
    number = evidence.manager.exit_code
    fields = {"name": evidence.manager.name, "exit_code": errors.EXIT_SIGNAL - number if number < 0 else number or 1}
    for cause in EndCause if evidence.first is None or evidence.pause is None else ():
        row = cause.value
        if row.find is None or (row.of_manager and not evidence.asks_manager):
            continue
        evident = evidence.find(row.find) if isinstance(row.find, EndCode) else row.find(evidence)
        if evident is not None:
            return cause.reason(**(fields | evident))
    return evidence.first or EndCause.FAILED_MANAGER.reason(**fields)
