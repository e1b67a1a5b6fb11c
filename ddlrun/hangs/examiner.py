"""The examination of a running job: one to three snapshots, which the keepers of its ranks take."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ddlrun.hangs.examination import Examination, evaluate
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot, RankSnapshot
from ddlrun.hangs.snapshot_parsing import parse_snapshot

# Keepers have this long to reply: those of hosts that do not acknowledge the order, and others.
CUT_OFF_SECONDS, SNAPSHOT_SECONDS = 3.0, 20.0
# A job that moves on may be at the same positions in two snapshots by chance: one that seems not to has a third.
SNAPSHOTS, MOST_SNAPSHOTS = 2, 3
NEVER = float("inf")


class ExaminedJob(Protocol):
    """A running job, as its keepers reach the ranks."""

    def order_snapshots(self) -> Collection[int]:
        """Order a snapshot from the keepers of all running ranks, and return these ranks."""

    def acknowledged(self, ranks: Collection[int]) -> Mapping[int, bool]:
        """Return True for each connected rank whose host acknowledges what ddlrun sends, False for the others."""

    def exit_codes(self) -> Mapping[int, int]:
        """Return the exit codes of the ranks that have ended."""

    def host_of(self, rank: int) -> str:
        """Return the host of a rank."""

    def gpu_utilization(self) -> Mapping[int, float]:
        """Return the latest share of the time in which the GPU of a rank is busy, where that is known."""


class ExaminationRequest(NamedTuple):
    """An examination that somebody waits for."""

    done: Callable[[Examination], None]
    """The function that gets the examination."""
    interval: float | None = None
    """The time to the next snapshot, in which a job that does not hang moves on; None: there is only one snapshot."""
    last_seconds: float | None = None
    """The time to reply before the end of the job; None: it is not about to end."""


class JobExaminer:
    """The examinations of a job, one at a time; times are those of time.monotonic()."""

    def __init__(self, job: ExaminedJob) -> None:
        self._job = job
        self._request: ExaminationRequest | None = None
        self._snapshots: list[JobSnapshot] = []
        self._replies: dict[int, RankSnapshot | None] = {}
        """The ranks from which this snapshot was ordered -> their replies."""
        self._ended: Mapping[int, int] = {}
        """The ranks that had ended when the last snapshot was ordered -> their exit codes."""
        self._awaited: set[int] = set()
        self._cut_off_at = NEVER
        self._deadline = self._next_snapshot = NEVER

    @property
    def busy(self) -> bool:
        """Whether an examination goes on."""
        return self._request is not None

    def deadline(self) -> float:
        """Return the time at which `advance` has something to do."""
        return min(self._deadline, self._cut_off_at, self._next_snapshot)

    def begin(self, request: ExaminationRequest, now: float) -> None:
        """Begin an examination, unless there is one."""
        if self._request is None:
            self._request, self._snapshots = request, []
            self._next_snapshot = now

    def add_snapshot(self, rank: int, text: str) -> None:
        """Add the snapshot of a rank. Raises ValueError if it cannot be read."""
        snapshot = parse_snapshot(text)
        if rank in self._awaited:
            self._replies[rank] = snapshot
            self._awaited.discard(rank)

    def end(self, rank: int) -> None:
        """Wait no longer for a rank that has ended."""
        if rank in self._awaited:
            self._awaited.discard(rank)
            del self._replies[rank]

    def advance(self, now: float) -> None:
        """Begin or finish a snapshot if that is due."""
        if self._request is None:
            return
        if now >= self._next_snapshot:
            self._ended = self._job.exit_codes()
            self._replies = dict.fromkeys(self._job.order_snapshots())
            self._awaited = set(self._replies)
            self._next_snapshot, self._cut_off_at = NEVER, now + CUT_OFF_SECONDS
            self._deadline = now + (self._request.last_seconds or SNAPSHOT_SECONDS)
        elif self._deadline < NEVER and self._is_complete(now):
            self._finish_snapshot(self._request, now)

    def _is_complete(self, now: float) -> bool:
        """Return True if all ranks have replied, or those that have not are not waited for any longer."""
        if not self._awaited or now >= self._deadline:
            return True
        if now < self._cut_off_at:
            return False
        self._cut_off_at = NEVER
        return not any(self._job.acknowledged(self._awaited).values())

    def _finish_snapshot(self, request: ExaminationRequest, now: float) -> None:
        self._snapshots.append(self._join_replies() if request.last_seconds is None else self._join_last())
        self._awaited, self._deadline, self._cut_off_at = set(), NEVER, NEVER
        gpus = self._job.gpu_utilization()
        examination = evaluate(self._snapshots, gpus, at_end=request.last_seconds is not None)
        is_certain = examination.goes_on or not all(rank.reachable for rank in examination.snapshot.ranks)
        if request.interval is not None and len(self._snapshots) < (SNAPSHOTS if is_certain else MOST_SNAPSHOTS):
            self._next_snapshot = now + request.interval
            return
        self._request = None
        request.done(examination)

    def _join_last(self) -> JobSnapshot:
        """Return the last snapshot, without the ranks that ended before they could be examined."""
        replies = {rank: snapshot for rank, snapshot in self._replies.items() if snapshot is not None}
        return JobSnapshot(
            tuple(
                ExaminedRank(rank, self._job.host_of(rank), replies.get(rank), self._ended.get(rank))
                for rank in sorted(replies.keys() | self._ended.keys())
            )
        )

    def _join_replies(self) -> JobSnapshot:
        codes = self._job.exit_codes()
        acknowledged = self._job.acknowledged(self._awaited)
        return JobSnapshot(
            tuple(
                ExaminedRank(
                    rank=rank,
                    host=self._job.host_of(rank),
                    snapshot=self._replies.get(rank),
                    exit_code=codes.get(rank),
                    reachable=acknowledged.get(rank, True),
                )
                for rank in sorted(self._replies.keys() | codes.keys())
            )
        )
