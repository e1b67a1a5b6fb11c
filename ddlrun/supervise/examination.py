"""The examination of a running job: looks at all ranks through their keepers, and the diagnosis."""

from collections.abc import Callable
from typing import NamedTuple

from ddlrun.hangs.diagnosis import Diagnosis, diagnose
from ddlrun.hangs.records import RankReport, parse_report
from ddlrun.hangs.verdict import JobLook, RankLook
from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.plan.supervision import SupervisedJob
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.keepers import Keepers

# Keepers have this long to reply: those of hosts that do not acknowledge the order, and others.
CUT_OFF_SECONDS, LOOK_SECONDS = 3.0, 20.0
# A job that moves on may be at the same positions in two observations by chance: one that seems not to has a third.
LOOKS, MOST_LOOKS = 2, 3
NEVER = float("inf")


class ExaminationRequest(NamedTuple):
    """An examination that somebody waits for."""

    done: Callable[[Diagnosis], None]
    """The function that gets the diagnosis."""
    interval: float | None = None
    """The time to the next look, in which a job that does not hang moves on; None: there is only one look."""


class JobExaminer:
    """The examinations of a job, one at a time; times are those of time.monotonic()."""

    def __init__(self, job: SupervisedJob, record: JobRecord) -> None:
        self._job, self._record = job, record
        self._request: ExaminationRequest | None = None
        self._looks: list[JobLook] = []
        self._reports: dict[int, RankReport | None] = {}
        """The ranks that were asked in this look -> their replies."""
        self._awaited: set[int] = set()
        self._cut_off_at = NEVER
        self._deadline = self._next_look = NEVER

    @property
    def busy(self) -> bool:
        """Whether an examination goes on."""
        return self._request is not None

    def deadline(self) -> float:
        """Return the time at which `advance` has something to do."""
        return min(self._deadline, self._cut_off_at, self._next_look)

    def begin(self, request: ExaminationRequest, now: float) -> None:
        """Begin an examination, unless there is one."""
        if self._request is None:
            self._request, self._looks = request, []
            self._next_look = now

    def add_report(self, rank: int, text: str) -> None:
        """Add the report of a rank. Raises ProtocolError if it cannot be read."""
        try:
            report = parse_report(text)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        if rank in self._awaited:
            self._reports[rank] = report
            self._awaited.discard(rank)

    def end(self, rank: int) -> None:
        """Wait no longer for a rank that has ended."""
        if rank in self._awaited:
            self._awaited.discard(rank)
            del self._reports[rank]

    def advance(self, now: float, keepers: Keepers) -> None:
        """Begin or finish a look if that is due."""
        if self._request is None:
            return
        if now >= self._next_look:
            self._look(now, keepers)
        elif self._deadline < NEVER and self._is_complete(now, keepers):
            self._finish_look(self._request, now, keepers)

    def _is_complete(self, now: float, keepers: Keepers) -> bool:
        """Return True if all ranks have replied, or those that have not are not waited for any longer."""
        if not self._awaited or now >= self._deadline:
            return True
        if now < self._cut_off_at:
            return False
        self._cut_off_at = NEVER
        awaited = [peer for peer in keepers.peers.values() if peer.rank in self._awaited]
        return not any(peer.acknowledged for peer in awaited)

    def _look(self, now: float, keepers: Keepers) -> None:
        peers = [peer for peer in list(keepers.peers.values()) if peer.running]
        self._reports = {peer.rank: None for peer in peers if peer.rank is not None}
        self._awaited = set(self._reports)
        self._next_look, self._deadline, self._cut_off_at = NEVER, now + LOOK_SECONDS, now + CUT_OFF_SECONDS
        for peer in peers:
            keepers.send(peer, protocol.INSPECT)

    def _finish_look(self, request: ExaminationRequest, now: float, keepers: Keepers) -> None:
        self._looks.append(self._take_look(keepers))
        self._awaited, self._deadline, self._cut_off_at = set(), NEVER, NEVER
        diagnosis = diagnose(self._looks)
        is_certain = diagnosis.goes_on or not all(rank.reachable for rank in diagnosis.look.ranks)
        if request.interval is not None and len(self._looks) < (LOOKS if is_certain else MOST_LOOKS):
            self._next_look = now + request.interval
            return
        self._request = None
        request.done(diagnosis)

    def _take_look(self, keepers: Keepers) -> JobLook:
        codes = {rank: end.exit_code for rank, end in self._record.ends.items()}
        silent = [peer for peer in keepers.peers.values() if peer.rank in self._awaited]
        cut_off = {peer.rank for peer in silent if not peer.acknowledged}
        return JobLook(
            tuple(
                RankLook(
                    rank=rank,
                    host=self._job.host_of(rank),
                    report=self._reports.get(rank),
                    exit_code=codes.get(rank),
                    reachable=rank not in cut_off,
                )
                for rank in sorted(self._reports.keys() | codes.keys())
            )
        )
