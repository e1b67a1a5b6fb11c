"""The diagnosis of a job: one look or several at its ranks, and the verdict; its record as JSON."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

from ddlrun.hangs.position import Position, locate_rank
from ddlrun.hangs.progress import has_progressed, is_computing, mark_stays
from ddlrun.hangs.records import RankReport
from ddlrun.hangs.verdict import HangFinding, HangVerdict, JobLook, group_ranks, judge
from ddlrun.hosts import fold
from ddlrun.ranges import name_numbers
from ddlrun.wording import kernel_wait

# Verdicts that name a hang, if the job has not moved.
HANGS = frozenset(HangFinding) - {HangFinding.RUNNING, HangFinding.UNKNOWN}
SAME_CALL_HINT = "their arguments, such as sizes, may differ"
# What comes before the sentence.
HANG, PROGRESS, LOOK = "hang", "no hang: the job moves on", "at this moment"
COMPUTES = "no hang: ranks compute, and none waits for another"


class Diagnosis(NamedTuple):
    """The result of an examination."""

    look: JobLook
    """The last look at the ranks."""
    verdict: HangVerdict
    moved: bool | None
    """Whether a rank has moved between two observations; None: there was only one."""
    computes: bool
    """Whether no rank waits for another, and all that do not sleep computed from the first observation to the last."""

    @property
    def goes_on(self) -> bool:
        """Whether the job does not hang, as two observations or more show."""
        return bool(self.moved or self.computes)

    @property
    def hangs(self) -> bool:
        """Whether the job hangs, as far as looks can show."""
        return self.moved is not None and not self.goes_on and self.verdict.finding in HANGS

    @property
    def explanation(self) -> str:
        """The verdict on a job that hangs, with a hint where no rank stands out."""
        hint = f": {SAME_CALL_HINT}" if self.verdict.finding is HangFinding.SAME_CALL else ""
        return self.verdict.text + hint

    @property
    def sentence(self) -> str:
        """The verdict, and whether the job hangs."""
        if self.hangs:
            return f"{HANG}: {self.explanation}"
        if self.computes and not self.moved:
            return f"{COMPUTES}: {self.verdict.text}"
        return f"{PROGRESS if self.moved else LOOK}: {self.verdict.text}"


def diagnose(looks: Sequence[JobLook]) -> Diagnosis:
    """Return the diagnosis of one look or several; the last one counts."""
    first, last = looks[0], looks[-1]
    if len(looks) == 1:
        return Diagnosis(last, judge(last), moved=None, computes=False)
    moved = any(map(has_progressed, looks, looks[1:]))
    last = mark_stays(first, last)
    return Diagnosis(last, judge(last), moved, is_computing(first, last))


def render_states(look: JobLook) -> str:
    """Return the states and stacks of all ranks, those of ranks at the same position once."""
    hosts = {rank.rank: rank.host for rank in look.ranks}
    reports = {rank.rank: rank.report for rank in look.ranks}
    lines = list[str]()
    for group in group_ranks(look):
        on = fold(dict.fromkeys(hosts[rank] for rank in group.ranks))
        lines.append(f"state of {name_numbers('rank', group.ranks)} on {on}:")
        report = reports[group.ranks[0]]
        lines += render_report(report) if report is not None else []
    return "\n".join(lines)


def render_report(report: RankReport) -> list[str]:
    """Return the lines of a rank's processes and their stacks, without native code."""
    lines = []
    for process in report.processes:
        waiting = f", waits in {kernel_wait(process.waits_in)}" if process.waits_in else ""
        lines.append(f"process {process.pid} ({process.name}): state {process.state}{waiting}")
        for thread in process.threads:
            name = f': "{thread.name}"' if thread.name else ""
            lines.append(f"  Thread {thread.id or '?'} ({'active' if thread.active else 'idle'}){name}")
            lines += [f"      {frame.function} ({frame.place})" for frame in thread.frames if frame.line]
        if process.problem:
            lines.append(f"  ({process.problem})")
    return lines


class HangVerdictRecord(TypedDict):
    """The verdict on a job."""

    finding: Annotated[str, HangFinding]
    """The kind of verdict."""
    hangs: bool
    """Whether no rank has moved, and some wait."""
    moved: bool | None
    """Whether a rank has moved between two observations; null: there was only one."""
    guilty: list[int]
    """The ranks that the others wait for, or that differ from them."""
    text: str
    """A sentence."""


def record_diagnosis(diagnosis: Diagnosis, request: str, time: float) -> dict[str, Any]:
    """Return doctor.json of a run folder; without a request of `ddlrun doctor`, ddlrun examined the job by itself."""
    return {
        "request": request,
        "time": time,
        "verdict": record_verdict(diagnosis),
        "sentence": diagnosis.sentence,
        "states": render_states(diagnosis.look),
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "exit_code": rank.exit_code,
                "position": None if rank.report is None else _record_position(locate_rank(rank.report)),
                "report": [] if rank.report is None else render_report(rank.report),
            }
            for rank in diagnosis.look.ranks
        ],
    }


def record_verdict(diagnosis: Diagnosis) -> HangVerdictRecord:
    """Return the record of the verdict."""
    verdict = diagnosis.verdict
    return {
        "finding": verdict.finding.value,
        "hangs": diagnosis.hangs,
        "moved": diagnosis.moved,
        "guilty": list(verdict.guilty),
        "text": verdict.text,
    }


def _record_position(position: Position) -> dict[str, Any]:
    frame, collective = position.frame, position.collective
    return {
        "activity": position.activity.value,
        "call": position.call,
        "function": "" if frame is None else frame.function,
        "file": "" if frame is None else frame.file,
        "line": 0 if frame is None else frame.line,
        "source": "" if frame is None else frame.source,
        "collective": "" if collective is None else f"{collective.number}: {collective.name} {collective.data}".strip(),
    }


def render_record(record: Mapping[str, Any]) -> str:
    """Return the lines that a terminal shows of a record."""
    return f"{record['sentence']}\n\n{record['states']}\n"
