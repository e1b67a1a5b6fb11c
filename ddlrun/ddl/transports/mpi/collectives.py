"""Collectives of the MPI library: the flat allreduce of small messages, and mode m in each dimension."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.group.reduce_ops import HALF, OPERATIONS, WIDE, store, widen
from ddlrun.ddl.schedules.partition import block_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.monitor.meters import TrafficMeter

    Array = NDArray[Any]

IN_PLACE = MPI.IN_PLACE
# Entries of the table of a SmallMessagePath. A script has few sizes.
MAX_ENTRIES = 1000


class SmallMessagePath:
    """A direct path from numpy arrays to MPI_Allreduce: at 64 KiB each microsecond is five per cent.

    It serves the sizes, dtypes and operations that were reduced by MPI_Allreduce before.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._allreduce, self._size = comm.Allreduce, comm.size
        self._entries: dict[tuple[str, str, int], tuple[MPI.Op, int]] = {}

    def learn(self, array: Array, reduce_op: ReduceOp) -> None:
        """Serve arrays like this one from now on, unless their dtype needs a conversion."""
        if reduce_op.dtype in WIDE and len(self._entries) < MAX_ENTRIES:
            operation = getattr(MPI, OPERATIONS[reduce_op.op][1])
            divisor = self._size if reduce_op.op == "avg" else 1
            self._entries[array.dtype.char, reduce_op.op, array.nbytes] = operation, divisor

    def reduce(self, x: Array, op: str) -> bool:
        """Reduce x in place; return False, with x unchanged, if it is not served."""
        entry = self._entries.get((x.dtype.char, op, x.nbytes))
        if entry is None or not x.flags.carray:
            return False
        operation, divisor = entry
        self._allreduce(IN_PLACE, x, operation)
        if divisor > 1:
            x /= divisor
        return True


@np.errstate(all="ignore")
def flat_allreduce(comm: MPI.Intracomm, array: Array, reduce_op: ReduceOp) -> None:
    """Reduce in place by a single MPI_Allreduce; half precision is sent as float32."""
    wide = widen(array, reduce_op.dtype)
    comm.Allreduce(MPI.IN_PLACE, wide, getattr(MPI, OPERATIONS[reduce_op.op][1]))
    if reduce_op.op == "avg":
        wide /= comm.size
    if wide is not array:
        store(wide, array, reduce_op.dtype)


@np.errstate(all="ignore")
def allreduce_by_dimension(
    comms: Mapping[int, MPI.Intracomm], array: Array, reduce_op: ReduceOp, meter: TrafficMeter | None = None
) -> None:
    """Reduce in place: MPI_Reduce_scatter along each communicator, then MPI_Allgatherv in mirrored order.

    Args:
        comms: The number of each dimension and its communicator.
        array: The elements.
        reduce_op: The operator.
        meter: Counts the traffic, if there is one.
    """
    wide = widen(array, reduce_op.dtype) if reduce_op.dtype in HALF else array
    operation = getattr(MPI, OPERATIONS[reduce_op.op][1])
    pieces, divisor = [wide], 1
    for axis, comm in comms.items():
        bounds = block_bounds(len(pieces[-1]), comm.size)
        own = pieces[-1][bounds[comm.rank] : bounds[comm.rank + 1]]
        sums = np.empty_like(own)
        start = perf_counter()
        comm.Reduce_scatter(pieces[-1], sums, _counts(bounds), operation)
        if meter is not None:
            meter.add(axis, pieces[-1].nbytes - own.nbytes, start, "MPI")
        own[:] = sums
        pieces.append(own)
        divisor *= comm.size
    if reduce_op.op == "avg":
        pieces[-1] /= divisor
    for (axis, comm), piece, own in reversed(list(zip(comms.items(), pieces, pieces[1:], strict=False))):
        bounds, start = block_bounds(len(piece), comm.size), perf_counter()
        comm.Allgatherv(MPI.IN_PLACE, [piece, _counts(bounds), bounds[:-1], MPI.Datatype.fromcode(piece.dtype.char)])
        if meter is not None:
            meter.add(axis, piece.nbytes - own.nbytes, start, "MPI", gathers=True)
    if wide is not array:
        store(wide, array, reduce_op.dtype)


def _counts(bounds: Sequence[int]) -> list[int]:
    return [high - low for low, high in zip(bounds, bounds[1:], strict=False)]
