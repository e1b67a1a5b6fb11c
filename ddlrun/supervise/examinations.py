"""The occasions on which a running job is examined: a request, a stall, and its end.

A request is a file in the run folder, which `ddlrun doctor` writes there, also from another host.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ddlrun.hangs.examination import HANGS, record_examination, record_verdict, render_states
from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import StallAction, SupervisionOptions
from ddlrun.runs.store import write_private
from ddlrun.supervise.cause import EndCause, EndReason
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.limits import JobLimits
from ddlrun.supervise.nccl_logs import NcclLogs
from ddlrun.wire.loop import NEVER

if TYPE_CHECKING:
    from ddlrun.hangs.examination import Examination
    from ddlrun.hangs.examiner import JobExaminer

# The interval at which a request is looked for.
REQUEST_SECONDS = 1.0
# The time between snapshots of a job that has printed nothing: a part of the time of --stall-timeout, within limits.
# Slow steps are seen only by snapshots that are far apart.
STALL_PART, LEAST_INTERVAL, LONGEST_INTERVAL = 0.05, 2.0, 10.0
LONGEST_REQUEST = 64
# At its end, a job is examined if it has run for so long, or printed nothing if that was requested.
LEAST_SECONDS = 3.0
# Larger jobs, whose snapshots take long, are not.
MOST_RANKS = 256


class Examinations:
    """The examinations of a job; times are those of time.monotonic()."""

    def __init__(
        self,
        options: SupervisionOptions,
        files: RunDir,
        limits: JobLimits,
        keepers: Keepers,
        end_job: Callable[[EndReason], None],
        tell: Callable[[str], None],
        gpu_utilization: Callable[[], Mapping[int, float]],
    ) -> None:
        """Prepare for examinations."""
        self.gpu_utilization = gpu_utilization
        self._options, self._files, self._limits, self._keepers = options, files, limits, keepers
        self._end_job, self._tell = end_job, tell
        self._examiner: JobExaminer | None = None
        self._next_request = 0.0
        self._next_stall_check = 0.0
        self._stalled_since = self._moved_at = 0.0
        self._limit: EndReason | None = None
        self._hung_at = float("-inf")
        """The time at which the job was last found to hang."""
        self.nccl_logs = NcclLogs(files, self.host_of, tell)

    # -- the job as its examiner sees it -----------------------------------------------------------------

    def order_snapshots(self) -> Collection[int]:
        """Order a snapshot from the keepers of all running ranks, and return these ranks."""
        peers = {peer.rank: peer for peer in self._keepers.peers.values() if peer.running and peer.rank is not None}
        for peer in peers.values():
            peer.send(protocol.TAKE_SNAPSHOT)
        return peers.keys()

    def acknowledged(self, ranks: Collection[int]) -> Mapping[int, bool]:
        """Return True for each connected rank whose host acknowledges what ddlrun sends, False for the others."""
        peers = self._keepers.peers.values()
        return {peer.rank: peer.acknowledged for peer in peers if peer.rank is not None and peer.rank in ranks}

    def exit_codes(self) -> Mapping[int, int]:
        """Return the exit codes of the ranks that have ended."""
        return {rank: end.exit_code for rank, end in self._limits.ranks.ends.items()}

    def host_of(self, rank: int) -> str:
        """Return the host of a rank."""
        return self._limits.ranks.job.host_of(rank)

    # -- the occasions -----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether an examination goes on."""
        return self._examiner is not None and self._examiner.busy

    @property
    def awaits_limit(self) -> bool:
        """Whether a time limit is exceeded, and the job is examined before its end."""
        return self._limit is not None

    def deadline(self) -> float:
        """Return the time at which `advance` has something to do."""
        return min(
            self._next_request, self.nccl_logs.due, NEVER if self._examiner is None else self._examiner.deadline()
        )

    def add_snapshot(self, rank: int, text: str) -> None:
        """Add the snapshot of a rank. Raises ProtocolError if it cannot be read."""
        try:
            if self._examiner is not None:
                self._examiner.add_snapshot(rank, text)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def end(self, rank: int) -> None:
        """Wait no longer for a rank that has ended."""
        if self._examiner is not None:
            self._examiner.end(rank)

    def end_at_limit(self, reason: EndReason | None) -> None:
        """Examine the job, and end it for a time limit if there is a reason; jobs without ranks are ended at once."""
        if reason is None or self._limit is not None:
            return
        if reason.cause is EndCause.TIME_LIMIT and self._limits.ranks.running:
            self._limit = reason
        else:
            self._end_job(reason)

    def begin_last(self, reason: EndReason, end: Callable[[], None]) -> bool:
        """Begin to examine a job, and then end it; return False if it was examined, or has just begun or printed.

        A job that is started again is not examined, as that would delay the restart.
        """
        now, ranks = time.monotonic(), self._limits.ranks
        if self._limit is not None or reason.cause is EndCause.STALL or not 1 < ranks.job.ranks <= MOST_RANKS:
            return False
        if self._options.restarts and not reason.requested:
            return False
        since = self._limits.last_output if reason.requested else self._limits.started_at
        if not ranks.running or now < since + LEAST_SECONDS or self._hung_at > self._limits.last_output:
            return False
        self._examiner = None

        def done(examination: "Examination") -> None:
            if examination.snapshot.snapshots:  # all ranks may have ended meanwhile
                self._save(examination, "")
                if reason.requested and examination.verdict.finding in HANGS:
                    self._tell_note(examination.sentence)
            end()

        self._begin(done, None, now, last_seconds=self._options.grace / 2)
        self.advance(now, ends=True)
        return True

    def advance(self, now: float, *, ends: bool) -> None:
        """Do what has become due; in a job that ends, no examination begins."""
        if not ends:
            self._look_for_occasions(now)
        if self._examiner is not None:
            self._examiner.advance(now)

    def _look_for_occasions(self, now: float) -> None:
        if now >= self.nccl_logs.due:
            self.nccl_logs.examine()
        if self._options.stall:
            self._check_stall(now)
        if now >= self._next_request:
            self._next_request = now + REQUEST_SECONDS
            self._take_request(now)
        if self._limit is not None and not self.busy:
            self._begin(self._on_limit, None, now)

    def _check_stall(self, now: float) -> None:
        """Report ranks that have become silent, and examine the job then, or again if it is to be ended for a stall."""
        silent = self._limits.find_silent(now, waited=not self._keepers.reading)
        if silent:
            job = self._limits.ranks.job
            self._tell(f"{job.describe(silent)} printed nothing for {self._options.stall:g} s")
        ends = self._ends_for_stall(now) and now >= self._next_stall_check
        if (silent or ends) and not self.busy and self._limit is None:
            self._stalled_since = now
            interval = min(max(LEAST_INTERVAL, STALL_PART * self._options.stall), LONGEST_INTERVAL)
            self._begin(self._on_stall, interval, now)

    def _ends_for_stall(self, now: float) -> bool:
        """Return True if a stall ends the job, and no rank has printed anything for the time of --stall-timeout."""
        silent = self._limits.last_output < now - self._options.stall
        return self._options.stall_action is StallAction.END and bool(self._limits.ranks.running) and silent

    def _begin(
        self,
        done: "Callable[[Examination], None]",
        interval: float | None,
        now: float,
        *,
        last_seconds: float | None = None,
    ) -> None:
        """Begin an examination with snapshots at an interval, or only one for None."""
        from ddlrun.hangs.examiner import ExaminationRequest, JobExaminer  # noqa: PLC0415 - 3 ms, for jobs that hang alone

        if self._examiner is None:
            self._examiner = JobExaminer(self)
        self._examiner.begin(ExaminationRequest(done, interval, last_seconds), now)

    # -- results -------------------------------------------------------------------------------------

    def _on_stall(self, examination: "Examination") -> None:
        now = time.monotonic()
        if self._limits.last_output >= self._stalled_since:  # the others may wait for a rank that has printed
            examination = examination._replace(moved=True)
        self._save(examination, "")
        if examination.goes_on:
            self._moved_at = now
        self._tell_stall(examination)
        if self._options.on_stall is not None:
            self._options.on_stall(record_verdict(examination))
        self._next_stall_check = now + self._options.stall
        works = bool(examination.work)
        limit = self._options.stall * (self._options.stall_work_factor if works else 1)
        silence = now - max(self._limits.last_output, self._moved_at)
        if self._ends_for_stall(now) and not examination.goes_on and 0 < limit < silence:
            option = "`--stall-timeout` x `--stall-work-factor`" if works else "`--stall-timeout`"
            fields = {"seconds": limit, "option": option, "explanation": examination.explanation}
            self._end_job(EndCause.STALL.reason(**fields))

    def _tell_stall(self, examination: "Examination") -> None:
        """Print the result, with all stacks unless ranks move or are busy."""
        if not (examination.goes_on or examination.work):
            self._tell(f"{examination.sentence}\n{render_states(examination.snapshot)}")
            return
        factor = self._options.stall_work_factor
        ends = self._options.stall_action is StallAction.END and factor and not examination.goes_on
        end = f"; the job ends after {factor:g} times --stall-timeout (--stall-work-factor)" if ends else ""
        self._tell(examination.sentence + end)

    def _on_limit(self, examination: "Examination") -> None:
        self._save(examination, "")
        self._tell_note(f"at the time limit: {examination.verdict.text}")
        if self._limit is not None:
            self._end_job(self._limit)

    def _tell_note(self, sentence: str) -> None:
        self._tell(f"note: {sentence}; ddlrun doctor prints the stacks")

    def _take_request(self, now: float) -> None:
        """Begin the examination that `ddlrun doctor` has requested, if it has."""
        if self.busy or self._limit is not None or not os.path.exists(self._files.examination_request):
            return
        with suppress(OSError, ValueError):
            with open(self._files.examination_request, encoding="ascii") as file:
                request, interval = file.read(LONGEST_REQUEST).split()
            os.unlink(self._files.examination_request)
            self._begin(lambda examination: self._save(examination, request), float(interval), now)

    def _save(self, examination: "Examination", request: str) -> None:
        """Write an examination to the run folder; a full disk is ignored."""
        self._hung_at = time.monotonic() if examination.hangs else self._hung_at
        record = record_examination(examination, request, time.time())
        with suppress(OSError):
            write_private(self._files.examination, [json.dumps(record), "\n"])
