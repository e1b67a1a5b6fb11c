"""The times that a job has: in all, until its ranks have started, and once the first of them has ended."""

import time
from collections.abc import Collection

from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.supervise.termination import TIMED_OUT, UNREACHABLE, EndReason

# So long after a rank has ended, it is worth a word that others have not.
EARLY_SECONDS = 30.0


class JobLimits:
    """A job's times, from its start on; all as time.monotonic() has them."""

    def __init__(self, watch: SupervisionOptions) -> None:
        self._watch = watch
        self.began = self._rank_came = time.monotonic()
        self._last_end = float("inf")
        self._ranks: set[int] = set()

    def rank_started(self, rank: int, now: float) -> bool:
        """Take note of a rank; tell whether all have started."""
        self._ranks.add(rank)
        self._rank_came = now
        return len(self._ranks) == self._watch.ranks

    def rank_ended(self) -> None:
        """Take note that one has ended."""
        self._last_end = time.monotonic()

    def due(self) -> float:
        """Return when to look again, at the latest."""
        timeout = self.began + self._watch.timeout if self._watch.timeout else float("inf")
        return min(timeout, self._rank_came + self._watch.start) if self._watch.start else timeout

    def over(self, now: float) -> EndReason | None:
        """Return why the job has to end where its time is over, or where mpirun does not get all ranks to start."""
        if self._watch.timeout and now > self.began + self._watch.timeout:
            return EndReason(TIMED_OUT, f"the time limit of {self._watch.timeout:g} s (--timeout)", wanted=True)
        if not self._watch.start or now <= self._rank_came + self._watch.start:
            return None
        missing = [rank for rank in range(self._watch.ranks) if rank not in self._ranks]
        if missing:
            why = f"{self._watch.named(missing)} did not start in {self._watch.start:g} s (--start-timeout)"
            return EndReason(UNREACHABLE, why)
        self._rank_came = float("inf")
        return None

    def early_ends(self, now: float, ended: Collection[int]) -> str | None:
        """Say once that some ranks have ended a while ago, and others not."""
        if now <= self._last_end + EARLY_SECONDS:
            return None
        self._last_end = float("inf")
        left = self._watch.ranks - len(ended)
        return (
            f"{self._watch.named(ended)} ended with 0; {left} of {self._watch.ranks} ranks still run" if left else None
        )
