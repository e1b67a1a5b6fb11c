"""Comparison of two algorithms by trial reductions, and the interface of the monitors that use it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """The usual algorithm and another one.

    measure: runs an algorithm and returns its seconds, the same on all ranks.
    """

    usual: AllreduceAlgorithm
    other: AllreduceAlgorithm
    measure: Measure


class Monitor(Protocol):
    """A change of algorithms by what is measured during a job. All ranks make the same calls."""

    def is_due(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> bool:
        """Count a reduction; return True if a measurement is to be made before it."""

    def update(self, make_comparison: Callable[[float], Comparison]) -> None:
        """Measure, and choose what is faster. Nothing is in progress.

        `make_comparison` is called with the seconds by which this rank begins late, and compares the usual algorithm
        with that of `adapt`.
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


def is_faster(comparison: Comparison) -> bool:
    """Run reductions by both algorithms in turn; return True if the other one is faster."""
    times: dict[AllreduceAlgorithm, list[float]] = {comparison.usual: [], comparison.other: []}
    for _ in range(1 + TURNS):
        for algorithm, seconds in times.items():
            seconds.append(comparison.measure(algorithm))
    return is_clearly_faster(times[comparison.other][1:], times[comparison.usual][1:])
