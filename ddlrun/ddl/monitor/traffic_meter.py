"""The traffic of an iteration per dimension: bytes sent, and the time in which messages were in progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.selection.wire_compression import WIRES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.schedules.schedule import ScheduleStep


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


class TimedCommunicator:
    """A communicator of one dimension whose collectives of mode m are metered."""

    def __init__(self, comm: Intracomm, meter: TrafficMeter, axis: int) -> None:
        self._comm, self._meter, self._axis = comm, meter, axis
        self.size, self.rank = comm.size, comm.rank

    def Reduce_scatter(self, whole: Any, own: Any, counts: list[int], operation: Any) -> None:  # noqa: ANN401, N802 - mpi4py's name
        """Call and meter Reduce_scatter."""
        start = perf_counter()
        self._comm.Reduce_scatter(whole, own, counts, operation)
        self._meter.add(self._axis, whole.nbytes - own.nbytes, start, "MPI")

    def Allgatherv(self, in_place: Any, pieces: list[Any]) -> None:  # noqa: ANN401, N802
        """Call and meter Allgatherv."""
        start = perf_counter()
        self._comm.Allgatherv(in_place, pieces)
        piece, counts = pieces[:2]
        sent = (sum(counts) - counts[self.rank]) * piece.itemsize
        self._meter.add(self._axis, sent, start, "MPI", gathers=True)
