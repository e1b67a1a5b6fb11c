"""Measurements of iterations: their time in computation and in reductions, and their traffic per dimension.

The traffic are the bytes sent, and the time in which messages were in progress.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from ddlrun.ddl.selection.wire_compression import WIRES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ddlrun.ddl.schedules.schedule import ScheduleStep

# An iteration reduces at least this share of the bytes of the largest one: a loss or a metric is not an iteration of
# its own, but counts with the next one. The largest decays by FORGET per reduction, so after some hundred it is
# forgotten.
SHARE, FORGET = 0.5, 0.99


@dataclass(frozen=True, slots=True)
class Iteration:
    """Seconds of an iteration outside and inside of calls of ddlrun.ddl, and its end by perf_counter."""

    compute: float
    inside: float
    ended: float


class IterationTimer:
    """Times the calls of the library, `with timer:` around each, and finds the ends of iterations.

    An iteration ends when a call that waited for reductions returns, none is in progress, and their bytes are at least
    half of the largest so far. So it is a blocking all_reduce_n, or all reductions from `start` to the last `wait`.
    """

    def __init__(self) -> None:
        self._at = perf_counter()
        self._compute = self._inside = self._largest = 0.0
        self._in_progress = self._bytes = 0

    def __enter__(self) -> None:
        """Count the time until now as computation."""
        now = perf_counter()
        self._compute += now - self._at
        self._at = now

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Count the time since `__enter__` as spent in the library."""
        now = perf_counter()
        self._inside += now - self._at
        self._at = now

    def skip(self) -> None:
        """Leave out the time since the last call."""
        self._at = perf_counter()

    def begin_reduction(self, size: int) -> None:
        """Count a reduction of `size` bytes that continues after the call."""
        self._in_progress += 1
        self._bytes += size

    def end_reduction(self) -> None:
        """Count a reduction as complete."""
        self._in_progress -= 1

    def end_wait(self, size: int = 0) -> Iteration | None:
        """Return the iteration that ends with a call that waited, or None.

        `size` is the bytes that the call reduced, beside those of `begin_reduction`.
        """
        self._bytes += size
        if self._in_progress:
            return None
        reduced, self._bytes = self._bytes, 0
        self._largest = max(self._largest * FORGET, float(reduced))
        if reduced < SHARE * self._largest or not reduced:
            return None
        iteration = Iteration(self._compute, self._inside, self._at)
        self._compute = self._inside = 0.0
        return iteration


PHASES = ("reduce-scatter", "allgather")


@dataclass(frozen=True, slots=True)
class DimensionTraffic:
    """A dimension in one iteration: its letters, learners and algorithm, bytes that a learner sends, busy seconds."""

    dimension: str
    learners: int
    algorithm: str
    sent: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second while busy."""
        return self.sent / self.seconds if self.seconds else 0.0


class TrafficMeter:
    """Counts the messages of one learner.

    `axis_of` has the number of the dimension in which a rank differs from this one, `names` the algorithm of each
    dimension. Every list has one place per dimension, and a last one for collectives of MPI over all dimensions:
    `wires` the 16-bit formats in use, `sent` bytes, `seconds` the time with messages in progress. `begins` and `ends`
    (perf_counter, nan: none) have two places each, one per phase: the start of its first message, the end of its last.
    """

    def __init__(self, axis_of: Mapping[int, int], names: Sequence[str]) -> None:
        self._axis_of = axis_of
        self.names = [*names, ""]
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        parts = len(self.names)
        self.wires = [""] * parts
        self.sent, self.seconds = [0] * parts, [0.0] * parts
        self._open, self._since = [0] * parts, [0.0] * parts
        self.begins, self.ends = [math.nan] * 2 * parts, [math.nan] * 2 * parts

    def begin(self, step: ScheduleStep, itemsize: int) -> None:
        """Count the messages of a step that begins."""
        axis = self._axis_of[(step.sends or step.receives)[0].peer]
        now, phase = perf_counter(), 2 * axis + (0 if step.combine else 1)
        if not self._open[axis]:
            self._since[axis] = now
        if math.isnan(self.begins[phase]):
            self.begins[phase] = now
        self._open[axis] += 1
        self.wires[axis] = step.wire
        size = WIRES.get(step.wire, itemsize)
        for _, low, high in step.sends:
            self.sent[axis] += (high - low) * size

    def end(self, step: ScheduleStep) -> None:
        """Count the messages of a step as complete."""
        axis = self._axis_of[(step.sends or step.receives)[0].peer]
        self._open[axis] -= 1
        now = self.ends[2 * axis + (0 if step.combine else 1)] = perf_counter()
        if not self._open[axis]:
            self.seconds[axis] += now - self._since[axis]

    def add(self, axis: int, sent: int, since: float, name: str, *, gathers: bool = False) -> None:
        """Count a collective of MPI that began at `since` (perf_counter); axis -1: over all dimensions."""
        now, phase = perf_counter(), 2 * axis + (1 if gathers else 0)
        self.sent[axis] += sent
        self.seconds[axis] += now - since
        self.names[axis] = name
        self.ends[phase] = now
        if math.isnan(self.begins[phase]):
            self.begins[phase] = since
