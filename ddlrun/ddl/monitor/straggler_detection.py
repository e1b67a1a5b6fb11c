"""Who is slow and why, from figures that all learners have of each other: pure, so that all come to the same end."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

# Slow is who took so many times the median in each of the last checks, and so many on average. One that is 10 % slow is
# to be found, and what is measured lies beside the truth: so the lines are drawn below.
SUSPECT, SLOW = 1.05, 1.075
SPREADS = 5  # median absolute deviations of the learners' averages
ERRORS = 3  # standard errors of the learner's own average: with few learners the spread says little
FEW = 3  # of three learners the spread is the distance of two
CHECKS = 3
COOL = 10
MOVES = 3
BETTER = 0.95


class IterationStats(NamedTuple):
    """What a learner tells of the iterations since the last check; times in seconds, nan: not known, or not looked at.

    `compute` is the median of its own compute time, `error` that median's standard error, `inside` the median time in
    reductions. Shares of the time: `delayed`, its threads were kept waiting for a CPU; `idle`, its main thread waited
    for something else; `throttled`, its cgroup was stopped. `switches` a second were not wanted, `clock` is what its
    CPUs run at as a share of the most, `moves` how often it was moved.
    """

    compute: float
    error: float
    inside: float
    delayed: float = math.nan
    idle: float = math.nan
    throttled: float = math.nan
    switches: float = math.nan
    clock: float = math.nan
    moves: float = 0


class StragglerFinding(NamedTuple):
    """What a check found of a learner: "slow", or after a move "better" or "not better"; times the median it takes."""

    rank: int
    what: str
    score: float
    before: float = 0.0


class RelativeTimes(NamedTuple):
    """What each learner took in one check, times the median of all, and the standard error of that."""

    taken: Array
    error: Array


def times_of(rows: Sequence[IterationStats]) -> RelativeTimes:
    """Return a check's times; the median of an even number is the lower: half may be slow."""
    compute, error = (np.array(one) for one in zip(*((row.compute, row.error) for row in rows), strict=True))
    middle = max(_low_median(compute), 1e-9)
    return RelativeTimes(compute / middle, error / middle)


def slow_ranks(checks: Sequence[RelativeTimes]) -> list[int]:
    """Return those that were beyond the others in each of these checks, and by more than noise on average."""
    mean = np.mean([one.taken for one in checks], axis=0)
    error = np.sqrt(np.sum([one.error**2 for one in checks], axis=0)) / len(checks)
    middle = _low_median(mean)
    spread = _low_median(np.abs(mean - middle)) if len(mean) > FEW else 0.0
    beyond = mean > np.maximum(SLOW * middle, middle + np.maximum(SPREADS * spread, ERRORS * error))
    always = np.min([one.taken for one in checks], axis=0) > SUSPECT
    return [int(rank) for rank in np.flatnonzero(beyond & always)]


def median_and_error(times: Sequence[float]) -> tuple[float, float]:
    """Return the median and its standard error, as for a normal distribution of the same absolute deviation."""
    middle = statistics.median(times)
    deviation = statistics.median(abs(one - middle) for one in times)
    return middle, 1.2533 * 1.4826 * deviation / math.sqrt(len(times))


class StragglerDetector:
    """Follows learners from check to check. Given the same figures it finds the same on all ranks."""

    def __init__(self) -> None:
        self._recent: deque[RelativeTimes] = deque(maxlen=CHECKS)
        self._cool: dict[int, int] = {}
        self._before: dict[int, tuple[float, float]] = {}
        self._trials: dict[int, list[float]] = {}

    def check(self, rows: Sequence[IterationStats]) -> list[StragglerFinding]:
        """Take a check's figures, one for each rank; return what is new."""
        times = times_of(rows)
        self._recent.append(times)
        self._begin_trials(rows)
        found = [finding for rank in list(self._trials) if (finding := self._judge(rank, float(times.taken[rank])))]
        self._cool = {rank: left - 1 for rank, left in self._cool.items() if left > 0}
        for rank in slow_ranks(self._recent) if len(self._recent) == CHECKS else ():
            if rank not in self._trials and rank not in self._cool:
                score = statistics.fmean(float(one.taken[rank]) for one in self._recent)
                self._cool[rank] = COOL
                self._before[rank] = score, rows[rank].moves
                found.append(StragglerFinding(rank, "slow", score))
        return found

    def suspects(self, rank: int) -> bool:
        """Tell whether a learner took longer in the last check, and may be found slow soon."""
        return bool(self._recent) and self._recent[-1].taken[rank] > SUSPECT and self._cool.get(rank, 0) < CHECKS

    def _begin_trials(self, rows: Sequence[IterationStats]) -> None:
        """Begin to judge those that have moved since they were found slow."""
        for rank, (_, moves) in list(self._before.items()):
            if rows[rank].moves > moves and rank not in self._trials:
                self._trials[rank] = []

    def _judge(self, rank: int, score: float) -> StragglerFinding | None:
        after = self._trials[rank]
        after.append(score)
        if len(after) <= CHECKS:  # the first has iterations from before the move
            return None
        del self._trials[rank]
        before, now = self._before.pop(rank)[0], statistics.median(after[1:])
        self._cool[rank] = COOL
        return StragglerFinding(rank, "better" if now <= BETTER * before else "not better", now, before)


def cause_of(mine: IterationStats, score: float) -> str:
    """Say what made a learner slow: "queue" alone is cured by other CPUs; else words for people."""
    whole = max(mine.compute + mine.inside, 1e-9)
    half = mine.compute * (1 - 1 / score) / 2 / whole  # of what it takes longer, as a share of an iteration
    if mine.throttled >= half:
        return f"its cgroup was stopped for its CPU quota {mine.throttled:.0%} of the time"
    if mine.delayed >= half or (math.isnan(mine.delayed) and mine.switches >= 20):
        return "queue"
    if mine.idle - mine.inside / whole >= half:
        return "it waits for something else than a CPU: data, a disk, a device"
    clock = "" if math.isnan(mine.clock) else f", which run at {mine.clock:.0%} of their clock"
    return f"it works longer on its own CPUs{clock}: a slow core, or more to do than the others have"


def _low_median(values: Array) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])
