"""Collectives timed inside a budget: each until its median is stable, or its share of the time is spent."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ddlrun.measure.collectives import Array, Collectives, Run

# Samples of at least so many seconds, of some runs in a row.
SAMPLE_SECONDS = 2e-4
MOST_IN_A_ROW = 100
LEAST_SAMPLES, MOST_SAMPLES = 5, 100
# Half of the middle half of all samples, over the root of their number: what the median is uncertain by.
STABLE = 0.01
# Mode p looks for the best way in so many runs.
EXPLORING = 40
LARGE = 1 << 18


class Cell(NamedTuple):
    """What is timed."""

    collective: str
    algorithm: str
    size: int


def cells_of(collectives: Collectives, sizes: Sequence[int]) -> list[Cell]:
    """Return all cells, small sizes first."""
    return [Cell(*one, size) for size in sorted(sizes) for one in collectives.runs]


class Timer:
    """Times cells on all ranks; only differences of a rank's own clock, of which the slowest counts."""

    def __init__(
        self, comm: MPI.Intracomm, collectives: Collectives, budget: float, least: Callable[[str, int], float]
    ) -> None:
        self._comm, self._collectives, self._least = comm, collectives, least
        self._end = float(comm.bcast(time.perf_counter() + budget))
        self._known: dict[tuple[str, str], tuple[int, float]] = {}

    def run(self, cells: Sequence[Cell], say: Callable[[Cell, float], None]) -> tuple[list[dict[str, Any]], list[Cell]]:
        """Return what was measured, and cells that would have taken more than their share of what is left."""
        found, left_out = [], []
        for number, cell in enumerate(cells):
            say(cell, number / len(cells))
            share = (self._end - self._now()) / (len(cells) - number)
            if 2 * self._expected(cell) > share:
                left_out.append(cell)
                continue
            found.append(cell._asdict() | self._time(cell, share))
        return found, left_out

    def _now(self) -> float:
        """Return rank 0's time, the same on all ranks; it decides when to end."""
        return float(self._comm.bcast(time.perf_counter()))

    def _expected(self, cell: Cell) -> float:
        """Return what a run takes at least: as the links allow, and as long as the last, smaller size has taken.

        Once bytes and not messages take the time, it grows as the size does.
        """
        size, seconds = self._known.get(cell[:2], (cell.size, 0.0))
        grown = seconds * cell.size / size if size >= LARGE else seconds
        return max(grown, self._least(cell.collective, cell.size))

    def _time(self, cell: Cell, share: float) -> dict[str, Any]:
        run = self._collectives.runs[cell[:2]]
        x = self._collectives.array(cell.collective, cell.size)
        end = self._now() + share
        right = self._collectives.right(cell.collective, run, x)  # the first one opens connections, and takes longer
        x[:] = 0
        once = self._sample(run, x, 1)
        if cell.algorithm == "p":
            for _ in range(EXPLORING):
                if self._now() + 2 * once > end - share / 2:
                    break
                once = self._sample(run, x, 1)
        row = int(min(max(SAMPLE_SECONDS / once, 1), MOST_IN_A_ROW))
        samples: list[float] = []
        while not samples or (len(samples) < MOST_SAMPLES and self._now() < end and not stable(samples)):
            samples.append(self._sample(run, x, row))
        low, median, high = (float(part) for part in np.quantile(samples, (0.25, 0.5, 0.75)))
        self._known[cell[:2]] = cell.size, median
        return {"bytes": x.nbytes, "seconds": median, "quartiles": [low, high], "samples": len(samples), "right": right}

    def _sample(self, run: Run, x: Array, row: int) -> float:
        self._comm.Barrier()
        start = time.perf_counter()
        for _ in range(row):
            run(x)
        return float(self._comm.allreduce((time.perf_counter() - start) / row, MPI.MAX))


def stable(samples: Sequence[float]) -> bool:
    """Tell whether the median will hardly change any more.

    >>> stable([1.0] * 4), stable([1.0] * 5)
    (False, True)
    """
    if len(samples) < LEAST_SAMPLES:
        return False
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return bool((high - low) / 2 <= STABLE * median * np.sqrt(len(samples)))
