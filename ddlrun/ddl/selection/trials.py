"""Comparison of two algorithms by trial reductions, and the interface of the monitors that use it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, MessageClass
    from ddlrun.ddl.selection.autotune import Measure

# Bytes of the smallest reduction that a monitor may change: below, the number of messages matters more.
LEAST_BYTES = 1 << 20
# Trial reductions of each algorithm, after one that opens connections, and the bytes of the largest one.
TURNS, LARGEST_TRIAL = 5, 8 << 20
# The share of the time that the other algorithm must save at least.
GAIN = 0.1


class Monitor(Protocol):
    """A change of algorithms by what is measured during a job. All ranks make the same calls."""

    def is_due(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> bool:
        """Count a reduction; return True if a measurement is to be made before it."""

    def update(self, is_adapted_faster: Callable[[float], bool]) -> None:
        """Measure, and choose what is faster. Nothing is in progress.

        `is_adapted_faster` is called with the seconds by which this rank begins late; it compares the usual algorithm
        with that of `adapt`, with the same result on all ranks.
        """

    def adapt(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> AllreduceAlgorithm:
        """Return the algorithm, or the one that takes its place."""


def is_clearly_faster(other: Sequence[float], usual: Sequence[float]) -> bool:
    """Return True if the other algorithm was faster than the usual one in each turn, and by GAIN in the median.

    >>> is_clearly_faster([2.0, 2.1, 2.0], usual=[3.0, 3.1, 2.9]), is_clearly_faster([2.0, 2.1, 2.0], [2.1, 2.2, 2.1])
    (True, False)
    """
    wins = all(seconds < usually for seconds, usually in zip(other, usual, strict=True))
    return wins and statistics.median(other) <= (1 - GAIN) * statistics.median(usual)


def is_faster(other: AllreduceAlgorithm, usual: AllreduceAlgorithm, measure: Measure) -> bool:
    """Run reductions by both algorithms in turn; return True if the other one is faster."""
    times: dict[AllreduceAlgorithm, list[float]] = {usual: [], other: []}
    for _ in range(1 + TURNS):
        for algorithm, seconds in times.items():
            seconds.append(measure(algorithm))
    return is_clearly_faster(times[other][1:], times[usual][1:])
