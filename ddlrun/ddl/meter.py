"""What one iteration does in each dimension: bytes sent, and the time in which messages of it were under way."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.schedule import Step


class Meter:
    """Counts for one learner; `axis_of` has the number of the dimension in which a rank differs from it.

    `names` are the algorithms of the dimensions, `wires` the 16-bit formats that travelled there.
    The last place of each list is for what MPI reduced as a whole.
    """

    def __init__(self, axis_of: Mapping[int, int], names: Sequence[str]) -> None:
        self._axis_of = axis_of
        self.names = [*names, ""]
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        parts = len(self.names)
        self.wires = [""] * parts
        self.sent, self.seconds = [0] * parts, [0.0] * parts
        self._open, self._since = [0] * parts, [0.0] * parts

    def begin(self, step: Step, itemsize: int) -> None:
        """Count a step's messages in."""
        axis = self._axis_of[(step.sends or step.receives)[0].peer]
        if not self._open[axis]:
            self._since[axis] = perf_counter()
        self._open[axis] += 1
        self.wires[axis] = step.wire
        size = 2 if step.wire else itemsize
        for _, low, high in step.sends:
            self.sent[axis] += (high - low) * size

    def end(self, step: Step) -> None:
        """Count a step's messages out."""
        axis = self._axis_of[(step.sends or step.receives)[0].peer]
        self._open[axis] -= 1
        if not self._open[axis]:
            self.seconds[axis] += perf_counter() - self._since[axis]

    def add(self, axis: int, sent: int, seconds: float, name: str) -> None:
        """Count something in that MPI did as a whole; axis -1: over all dimensions."""
        self.sent[axis] += sent
        self.seconds[axis] += seconds
        self.names[axis] = name


class Timed:
    """A communicator of one dimension whose collectives of mode m are timed."""

    def __init__(self, comm: Intracomm, meter: Meter, axis: int) -> None:
        self._comm, self._meter, self._axis = comm, meter, axis
        self.size, self.rank = comm.size, comm.rank

    def Reduce_scatter(self, whole: Any, own: Any, counts: list[int], operation: Any) -> None:  # noqa: ANN401, N802 - mpi4py's name
        """Do and time it."""
        start = perf_counter()
        self._comm.Reduce_scatter(whole, own, counts, operation)
        self._meter.add(self._axis, whole.nbytes - own.nbytes, perf_counter() - start, "MPI")

    def Allgatherv(self, in_place: Any, pieces: list[Any]) -> None:  # noqa: ANN401, N802
        """Do and time it."""
        start = perf_counter()
        self._comm.Allgatherv(in_place, pieces)
        piece, counts = pieces[:2]
        sent = (sum(counts) - counts[self.rank]) * piece.itemsize
        self._meter.add(self._axis, sent, perf_counter() - start, "MPI")
