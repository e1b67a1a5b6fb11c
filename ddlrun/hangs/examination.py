"""The examination of a job: one to three snapshots, and the verdict; its record as JSON."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypedDict

from ddlrun.hangs.communicators import LateRank
from ddlrun.hangs.position import IMPORTER, Position, locate_rank
from ddlrun.hangs.progress import has_progressed, is_computing, mark_stays
from ddlrun.hangs.snapshot import JobSnapshot, RankSnapshot
from ddlrun.hangs.verdict import HangFinding, HangVerdict, group_ranks, judge
from ddlrun.hangs.waits import locate_ranks
from ddlrun.hangs.work import find_work, name_work
from ddlrun.hosts import fold
from ddlrun.ranges import name_numbers
from ddlrun.wording import kernel_wait

# Verdicts that name a hang, if the job has not moved.
HANGS = frozenset(HangFinding) - {HangFinding.RUNNING, HangFinding.UNKNOWN}
SAME_CALL_HINT = "their arguments, such as sizes, may differ"
# What comes before the sentence.
HANG, PROGRESS, MOMENT, END = "hang", "no hang: the job makes progress", "at this moment", "when the job ended"
COMPUTES = "no hang: ranks compute, and none waits for another"
WORKS = "no hang so far"


class Examination(NamedTuple):
    """The result of an examination."""

    snapshot: JobSnapshot
    """The last one."""
    verdict: HangVerdict
    moved: bool | None
    """Whether a rank has moved between two snapshots; None: there was only one."""
    computes: bool
    """Whether no rank waits for another, and all that do not sleep worked from the first snapshot to the last."""
    work: Mapping[int, str] = MappingProxyType({})
    """The ranks that worked, and what they did."""
    at_end: bool = False
    """Whether the job was about to end."""

    @property
    def goes_on(self) -> bool:
        """Whether the job does not hang, as two snapshots or more show."""
        return bool(self.moved or self.computes)

    @property
    def hangs(self) -> bool:
        """Whether the job hangs, as far as snapshots can show."""
        return self.moved is not None and not self.goes_on and not self.work and self.verdict.finding in HANGS

    @property
    def explanation(self) -> str:
        """The verdict on a job that hangs, with the ranks that work, or a hint where no rank stands out."""
        if self.work:
            return f"{name_work(self.work)}; {self.verdict.text}"
        hint = f": {SAME_CALL_HINT}" if self.verdict.finding is HangFinding.SAME_CALL else ""
        return self.verdict.text + hint

    @property
    def sentence(self) -> str:
        """The verdict, and whether the job hangs."""
        if self.hangs:
            return f"{HANG}: {self.explanation}"
        if self.computes and not self.moved:
            return f"{COMPUTES}: {self.verdict.text}"
        if self.work and not self.moved:
            return f"{WORKS}: {self.explanation}"
        return f"{PROGRESS if self.moved else END if self.at_end else MOMENT}: {self.verdict.text}"


def evaluate(
    snapshots: Sequence[JobSnapshot], gpus: Mapping[int, float] = MappingProxyType({}), *, at_end: bool = False
) -> Examination:
    """Return the examination that one snapshot or several make; the verdict is on the last one.

    `gpus` has the share of the time in which the GPU of a rank is busy, where that is known.
    """
    first, last = snapshots[0], snapshots[-1]
    if len(snapshots) == 1:
        return Examination(last, judge(last), moved=None, computes=False, at_end=at_end)
    moved = any(map(has_progressed, snapshots, snapshots[1:]))
    last, note = mark_stays(first, last), explain_communicators(first, last)
    verdict = judge(last)
    verdict = verdict._replace(text=f"{verdict.text}; {note}") if note else verdict
    work = find_work([*snapshots[:-1], last], gpus)
    return Examination(last, verdict, moved, is_computing(last, verdict, work), work)


def explain_communicators(before: JobSnapshot, last: JobSnapshot) -> str:
    """Return a note of NCCL beside a verdict, on ranks that differ in two snapshots; empty: none do.

    Processes of other jobs, which may have replied, are none of a rank's.
    """
    owners: dict[int, set[int]] = {}
    for rank, snapshot in last.snapshots.items():
        for process in snapshot.processes:
            owners.setdefault(process.pid, set()).add(rank)
    known = {pid: min(ranks) for pid, ranks in owners.items() if len(ranks) == 1}
    late = {
        (it.operation, it.pid, size, it) for _, size, it in _list_late(before) & _list_late(last) if it.pid in known
    }
    return "; ".join(_describe_late(known[pid], it, size) for _, pid, size, it in sorted(late))


def _list_late(job: JobSnapshot) -> set[tuple[str, int, LateRank]]:
    communicators = (each for snapshot in job.snapshots.values() for each in snapshot.communicators)
    return {(each.hash, each.size, late) for each in communicators for late in each.late}


def _describe_late(rank: int, late: LateRank, size: int) -> str:
    if not late.operation:
        return f"NCCL gets no reply from rank {rank}"
    place = f" in a communicator of {size} ranks" if size else ""
    return f"NCCL: rank {rank} has started {late.begun} {late.operation} operations, others {late.most}{place}"


def render_states(job: JobSnapshot) -> str:
    """Return the states and stacks of all ranks, those of ranks at the same position once."""
    hosts = {rank.rank: rank.host for rank in job.ranks}
    lines = list[str]()
    for group in group_ranks(locate_ranks(job)):
        on = fold(dict.fromkeys(hosts[rank] for rank in group.ranks if hosts[rank]))
        lines.append(f"state of {name_numbers('rank', group.ranks)}{f' on {on}' if on else ''}:")
        lines += render_snapshot(job.snapshots[group.ranks[0]])
    return "\n".join(lines)


def render_snapshot(snapshot: RankSnapshot) -> list[str]:
    """Return the lines of a rank's processes and their stacks, without native code and the import machinery."""
    lines = []
    for process in snapshot.processes:
        waiting = f" ({kernel_wait(process.waits_in)})" if process.waits_in else ""
        lines.append(f"process {process.pid} ({process.name}): state {process.state}{waiting}")
        for thread in process.threads:
            name = f': "{thread.name}"' if thread.name else ""
            lines.append(f"  Thread {thread.id or '?'} ({'active' if thread.active else 'idle'}){name}")
            shown = (frame for frame in thread.frames if frame.line and not frame.file.startswith(IMPORTER))
            lines += [f"      {frame.function} ({frame.place})" for frame in shown]
        if process.problem:
            lines.append(f"  ({process.problem})")
    return lines


class HangVerdictRecord(TypedDict):
    """The verdict on a job."""

    finding: Annotated[str, HangFinding]
    """The kind of verdict."""
    hangs: bool
    """Whether no rank has moved or worked, and some wait."""
    moved: bool | None
    """Whether a rank has moved between two snapshots; null: there was only one."""
    working: list[int]
    """The ranks that computed or transferred data, whether or not they moved."""
    guilty: list[int]
    """The ranks that the others wait for, or that differ from them."""
    text: str
    """A sentence."""


def record_examination(examination: Examination, request: str, time: float) -> dict[str, Any]:
    """Return examination.json of a run folder; the request of `ddlrun doctor` is empty if ddlrun began by itself."""
    return {
        "request": request,
        "time": time,
        "verdict": record_verdict(examination),
        "sentence": examination.sentence,
        "states": render_states(examination.snapshot),
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "exit_code": rank.exit_code,
                "position": None if rank.snapshot is None else _record_position(locate_rank(rank.snapshot)),
                "snapshot": [] if rank.snapshot is None else render_snapshot(rank.snapshot),
            }
            for rank in examination.snapshot.ranks
        ],
    }


def record_verdict(examination: Examination) -> HangVerdictRecord:
    """Return the record of the verdict."""
    verdict = examination.verdict
    return {
        "finding": verdict.finding.value,
        "hangs": examination.hangs,
        "moved": examination.moved,
        "working": sorted(examination.work),
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
        "collective": "" if collective is None else f"{collective.text} {collective.data}".strip(),
    }


def render_record(record: Mapping[str, Any]) -> str:
    """Return the lines that a terminal shows of a record."""
    return f"{record['sentence']}\n\n{record['states']}\n"
