"""Collectives timed within a budget: each until its median is stable, or its share of the time is spent."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from ddlrun.measure.collectives import Array, Collectives, Run
from ddlrun.network.measurements import SampleRecord, TimingRecord

# A sample is the mean of several runs in a row that take at least this long together.
SAMPLE_SECONDS = 2e-4
MOST_IN_A_ROW = 100
LEAST_SAMPLES, MOST_SAMPLES = 5, 100
# Half the interquartile range over the root of the number of samples, as a share of the median: its uncertainty.
STABLE = 0.01
# The runs in which mode p explores.
EXPLORING = 40
LARGE = 1 << 18


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement to make: a collective, an algorithm, and bytes."""

    collective: str
    algorithm: str
    size: int

    @property
    def run(self) -> tuple[str, str]:
        """The collective and the algorithm."""
        return self.collective, self.algorithm


def cells_of(collectives: Collectives, sizes: Sequence[int]) -> list[Cell]:
    """Return all cells, small sizes first."""
    return [Cell(*name, size) for size in sorted(sizes) for name in collectives.runs]


class Timer:
    """Times cells on all ranks by differences of each rank's own clock; the slowest rank counts."""

    def __init__(
        self, comm: MPI.Intracomm, collectives: Collectives, budget: float, least: Callable[[str, int], float]
    ) -> None:
        self._comm, self._collectives, self._least = comm, collectives, least
        self._end = float(comm.bcast(time.perf_counter() + budget))
        self._last: dict[tuple[str, str], tuple[int, float]] = {}

    def run(
        self, cells: Sequence[Cell], progress: Callable[[Cell, float], None]
    ) -> tuple[list[TimingRecord], list[Cell]]:
        """Return the measurements, and the cells left out: they would take more than their share of the time left."""
        measured, left_out = list[TimingRecord](), list[Cell]()
        for number, cell in enumerate(cells):
            progress(cell, number / len(cells))
            share = (self._end - self._now()) / (len(cells) - number)
            if 2 * self._expected(cell) > share:
                left_out.append(cell)
                continue
            samples = self._time(cell, share)
            measured.append({"collective": cell.collective, "algorithm": cell.algorithm, "size": cell.size, **samples})
        return measured, left_out

    def _now(self) -> float:
        """Return the time of rank 0's clock, by which all ranks decide alike."""
        return float(self._comm.bcast(time.perf_counter()))

    def _expected(self, cell: Cell) -> float:
        """Return a lower bound of a run's seconds: the limit of the links, and the time of the last, smaller size.

        From LARGE on, where bytes and not messages take the time, the time grows with the size.
        """
        size, seconds = self._last.get(cell.run, (cell.size, 0.0))
        scaled = seconds * cell.size / size if size >= LARGE else seconds
        return max(scaled, self._least(cell.collective, cell.size))

    def _time(self, cell: Cell, share: float) -> SampleRecord:
        run = self._collectives.runs[cell.run]
        x = self._collectives.array(cell.collective, cell.size)
        end = self._now() + share
        # The first run opens connections and takes longer.
        correct = self._collectives.is_correct(cell.collective, run, x)
        x[:] = 0
        once = self._sample(run, x, 1)
        if cell.algorithm == "p":
            for _ in range(EXPLORING):
                if self._now() + 2 * once > end - share / 2:
                    break
                once = self._sample(run, x, 1)
        row = int(min(max(SAMPLE_SECONDS / once, 1), MOST_IN_A_ROW))
        samples: list[float] = []
        while not samples or (len(samples) < MOST_SAMPLES and self._now() < end and not is_stable(samples)):
            samples.append(self._sample(run, x, row))
        low, median, high = (float(part) for part in np.quantile(samples, (0.25, 0.5, 0.75)))
        self._last[cell.run] = cell.size, median
        return {
            "bytes": x.nbytes, "seconds": median, "quartiles": [low, high], "samples": len(samples), "correct": correct,
        }  # fmt: skip

    def _sample(self, run: Run, x: Array, row: int) -> float:
        self._comm.Barrier()
        start = time.perf_counter()
        for _ in range(row):
            run(x)
        return float(self._comm.allreduce((time.perf_counter() - start) / row, MPI.MAX))


def is_stable(samples: Sequence[float]) -> bool:
    """Return True if further samples would hardly change the median.

    >>> is_stable([1.0] * 4), is_stable([1.0] * 5)
    (False, True)
    """
    if len(samples) < LEAST_SAMPLES:
        return False
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return bool((high - low) / 2 <= STABLE * median * np.sqrt(len(samples)))
