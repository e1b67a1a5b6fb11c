"""The time limits of a job: in total, for the start of its ranks, and after the end of the first of them."""

import time
from collections.abc import Collection

from ddlrun.hosts import fold
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.supervise.cause import EndCause, EndReason

# After this long, a rank that has ended while others run is worth a message.
EARLY_SECONDS = 30.0
NEVER = float("inf")


class JobLimits:
    """A job's limits from its start on; times are those of time.monotonic()."""

    def __init__(self, options: SupervisionOptions, job: SupervisedJob, session: int) -> None:
        """Start the clock of a job that runs in the process manager's session."""
        self._options, self._job, self._session = options, job, session
        self.started_at = time.monotonic()
        self._started: set[int] = set()
        self._last_start = self.started_at
        self._last_end = NEVER

    def has_started(self, rank: int) -> bool:
        """Return True if a rank has started, even if it has ended since."""
        return rank in self._started

    @property
    def any_started(self) -> bool:
        """Whether a rank has started."""
        return bool(self._started)

    def rank_started(self, rank: int, now: float) -> bool:
        """Record the start of a rank; return True if all have started."""
        self._started.add(rank)
        self._last_start = now
        return len(self._started) == self._job.ranks

    def rank_ended(self) -> None:
        """Record the end of a rank."""
        self._last_end = time.monotonic()

    def deadline(self) -> float:
        """Return the time of the next limit."""
        timeout = self.started_at + self._options.timeout if self._options.timeout else NEVER
        return min(timeout, self._last_start + self._options.start) if self._options.start else timeout

    def exceeded(self, now: float) -> EndReason | None:
        """Return the reason to end the job if a limit is exceeded: the job's own, or that for its ranks' start."""
        if self._options.timeout and now > self.started_at + self._options.timeout:
            return EndCause.TIME_LIMIT.reason(seconds=self._options.timeout)
        if not self._options.start or now <= self._last_start + self._options.start:
            return None
        missing = [rank for rank in range(self._job.ranks) if rank not in self._started]
        if missing:
            ranks, daemons = self._job.describe(missing), self._explain_late_start()
            return EndCause.LATE_START.reason(ranks=ranks, seconds=self._options.start, daemons=daemons)
        self._last_start = NEVER
        return None

    def _explain_late_start(self) -> str:
        """Return the hosts whose daemons are waited for before any rank starts, in words; empty if unknown."""
        manager = self._job.manager
        hosts = [] if self._started else manager.find_missing_daemons(self._session, self._job.host_names)
        return f": no daemon on {fold(hosts)} has connected to {manager.name}" if hosts else ""

    def report_early_ends(self, now: float, ended: Collection[int]) -> str | None:
        """Return a message, once, if some ranks have ended a while ago and others have not."""
        if now <= self._last_end + EARLY_SECONDS:
            return None
        self._last_end = NEVER
        running = self._job.ranks - len(ended)
        if not running:
            return None
        return f"{self._job.describe(ended)} ended with 0; {running} of {self._job.ranks} ranks still run"
