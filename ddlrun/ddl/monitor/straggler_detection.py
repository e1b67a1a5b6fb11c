"""Detection of stragglers and their causes from the figures of all learners.

All functions are pure, so every learner reaches the same result.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

# A slow learner took SUSPECT times the median in each of the last checks, and SLOW times on average. The goal is to
# find one that is 10 % slow; measured times vary around the true ones, so the limits are lower.
SUSPECT, SLOW = 1.05, 1.075
SPREADS = 5  # median absolute deviations of the learners' averages
ERRORS = 3  # standard errors of the learner's own average: with few learners the spread says little
FEW = 3  # of up to three learners the spread is only the distance of two
CHECKS = 3  # checks in which a learner must be slow, and by which a move is judged
COOL_DOWN = 10  # checks before a learner can be found slow again
MAX_MOVES = 3
BETTER = 0.95  # a move helped if the learner takes at most this share of its time before
SWITCHES = 20  # involuntary context switches per second from which on a learner waits for a CPU


@dataclass(frozen=True, slots=True)
class IterationStats:
    """A learner's figures of the iterations since the last check; nan: unknown, or not read.

    compute: median of its computing time, in seconds. error: standard error of that median, in seconds. inside: median
    of the time in reductions, in seconds. As shares of the time: delayed, its threads waited for a CPU; idle, its main
    thread waited for something else; throttled, its cgroup was stopped. switches: involuntary context switches per
    second. clock: the frequency of its CPUs, as a share of the maximum. moves: times that it was moved.
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


class Verdict(Enum):
    """The result of a check: a learner is slow, or how it does after a move. The values are those of the event log."""

    SLOW = "slow"
    BETTER = "better"
    NOT_BETTER = "not better"


@dataclass(frozen=True, slots=True)
class StragglerFinding:
    """A finding about a learner. score: its time as a multiple of the median; before: the same before its move."""

    rank: int
    verdict: Verdict
    score: float
    before: float = 0.0


class CauseCode(Enum):
    """Why a learner is slow. Only WAITS_FOR_CPU is cured by other CPUs."""

    QUOTA = "quota"
    WAITS_FOR_CPU = "waits for CPU"
    WAITS_ELSEWHERE = "waits elsewhere"
    SLOW_CORE = "slow core"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a learner is slow: as a code, and as text for the report."""

    code: CauseCode
    text: str


@dataclass(frozen=True, slots=True)
class RelativeTimes:
    """Each learner's time in one check as a multiple of the median of all, and the standard error of that."""

    times: Array
    errors: Array


def relative_times(rows: Sequence[IterationStats]) -> RelativeTimes:
    """Return the times of a check, relative to the lower median: half of the learners may be slow."""
    compute = np.array([row.compute for row in rows])
    error = np.array([row.error for row in rows])
    median = max(_lower_median(compute), 1e-9)
    return RelativeTimes(compute / median, error / median)


def slow_ranks(checks: Sequence[RelativeTimes]) -> list[int]:
    """Return the ranks that were slower than the others in each of these checks, and by more than noise on average."""
    mean = np.mean([check.times for check in checks], axis=0)
    error = np.sqrt(np.sum([check.errors**2 for check in checks], axis=0)) / len(checks)
    median = _lower_median(mean)
    spread = _lower_median(np.abs(mean - median)) if len(mean) > FEW else 0.0
    beyond_noise = mean > np.maximum(SLOW * median, median + np.maximum(SPREADS * spread, ERRORS * error))
    always = np.min([check.times for check in checks], axis=0) > SUSPECT
    return [int(rank) for rank in np.flatnonzero(beyond_noise & always)]


def median_and_error(times: Sequence[float]) -> tuple[float, float]:
    """Return the median and its standard error.

    The error is that of a normal distribution with the same median absolute deviation: sigma is 1.4826 times that
    deviation, and the standard error of a median is 1.2533 (the root of pi/2) times sigma over the root of the number
    of times.
    """
    median = statistics.median(times)
    deviation = statistics.median(abs(time - median) for time in times)
    return median, 1.2533 * 1.4826 * deviation / math.sqrt(len(times))


class StragglerDetector:
    """Follows the learners from check to check. From the same figures it finds the same on all ranks."""

    def __init__(self) -> None:
        self._recent: deque[RelativeTimes] = deque(maxlen=CHECKS)
        self._cool_down: dict[int, int] = {}
        """Rank -> checks in which it cannot be found slow."""
        self._slow: dict[int, tuple[float, float]] = {}
        """Rank that was found slow -> its score and its moves then."""
        self._trials: dict[int, list[float]] = {}
        """Rank that has moved -> its scores since."""

    def check(self, rows: Sequence[IterationStats]) -> list[StragglerFinding]:
        """Return the new findings of a check; `rows` has the figures of each rank."""
        relative = relative_times(rows)
        self._recent.append(relative)
        self._begin_trials(rows)
        judgements = [self._judge(rank, float(relative.times[rank])) for rank in list(self._trials)]
        findings = [finding for finding in judgements if finding]
        self._cool_down = {rank: left - 1 for rank, left in self._cool_down.items() if left > 0}
        for rank in slow_ranks(self._recent) if len(self._recent) == CHECKS else ():
            if rank not in self._trials and rank not in self._cool_down:
                score = statistics.fmean(float(check.times[rank]) for check in self._recent)
                self._cool_down[rank] = COOL_DOWN
                self._slow[rank] = score, rows[rank].moves
                findings.append(StragglerFinding(rank, Verdict.SLOW, score))
        return findings

    def suspects(self, rank: int) -> bool:
        """Return True if a learner took longer in the last check, and may soon be found slow."""
        return bool(self._recent) and self._recent[-1].times[rank] > SUSPECT and self._cool_down.get(rank, 0) < CHECKS

    def _begin_trials(self, rows: Sequence[IterationStats]) -> None:
        """Begin to judge the learners that have moved since they were found slow."""
        for rank, (_, moves) in list(self._slow.items()):
            if rows[rank].moves > moves and rank not in self._trials:
                self._trials[rank] = []

    def _judge(self, rank: int, score: float) -> StragglerFinding | None:
        scores = self._trials[rank]
        scores.append(score)
        if len(scores) <= CHECKS:  # the first has iterations from before the move
            return None
        del self._trials[rank]
        before, after = self._slow.pop(rank)[0], statistics.median(scores[1:])
        self._cool_down[rank] = COOL_DOWN
        verdict = Verdict.BETTER if after <= BETTER * before else Verdict.NOT_BETTER
        return StragglerFinding(rank, verdict, after, before)


def find_cause(stats: IterationStats, score: float) -> Cause:
    """Return the cause of a slow learner: the first one that explains half of the time that it takes longer."""
    whole = max(stats.compute + stats.inside, 1e-9)
    half = stats.compute * (1 - 1 / score) / 2 / whole  # as a share of an iteration
    if stats.throttled >= half:
        return Cause(CauseCode.QUOTA, f"its cgroup was stopped for its CPU quota {stats.throttled:.0%} of the time")
    if stats.delayed >= half or (math.isnan(stats.delayed) and stats.switches >= SWITCHES):
        return Cause(CauseCode.WAITS_FOR_CPU, "queue")
    if stats.idle - stats.inside / whole >= half:
        return Cause(CauseCode.WAITS_ELSEWHERE, "it waits for something other than a CPU: data, a disk, a device")
    clock = "" if math.isnan(stats.clock) else f", which run at {stats.clock:.0%} of their clock"
    return Cause(
        CauseCode.SLOW_CORE,
        f"it works longer on its own CPUs{clock}: a slow core, or more to do than the others have",
    )


def _lower_median(values: Array) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])
