"""What the MPI library does itself: the flat allreduce of small messages, and mode m dimension by dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.partition import cuts
from ddlrun.ddl.reduce_ops import HALF, OPERATIONS, WIDE, store, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.reduce_ops import ReduceOp

    Array = NDArray[Any]

IN_PLACE = MPI.IN_PLACE
# Sizes; a script has few.
MOST_KNOWN = 1000


class SmallMessagePath:
    """Numpy arrays straight to MPI_Allreduce, as it is called by hand: at 64 KiB each microsecond is five per cent.

    Knows the sizes, types and operations that have gone that way once.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._allreduce, self._size = comm.Allreduce, comm.size
        self._known: dict[tuple[str, str, int], tuple[MPI.Op, int]] = {}

    def learn(self, array: Array, kind: ReduceOp) -> None:
        """Note that arrays like this one go this way, unless that needs a conversion."""
        if kind.dtype in WIDE and len(self._known) < MOST_KNOWN:
            operation = getattr(MPI, OPERATIONS[kind.op][1])
            self._known[array.dtype.char, kind.op, array.nbytes] = operation, self._size if kind.op == "avg" else 1

    def reduce(self, x: Array, op: str) -> bool:
        """Reduce in place; say whether that was possible."""
        known = self._known.get((x.dtype.char, op, x.nbytes))
        if known is None or not x.flags.carray:
            return False
        operation, divisor = known
        self._allreduce(IN_PLACE, x, operation)
        if divisor > 1:
            x /= divisor
        return True


@np.errstate(all="ignore")
def flat_allreduce(comm: MPI.Intracomm, array: Array, kind: ReduceOp) -> None:
    """Reduce in place by one MPI_Allreduce; half precision travels as float32."""
    wide = widened(array, kind.dtype)
    comm.Allreduce(MPI.IN_PLACE, wide, getattr(MPI, OPERATIONS[kind.op][1]))
    if kind.op == "avg":
        wide /= comm.size
    if wide is not array:
        store(wide, array, kind.dtype)


@np.errstate(all="ignore")
def allreduce_by_dimension(comms: Sequence[MPI.Intracomm], array: Array, kind: ReduceOp) -> None:
    """Reduce in place: MPI_Reduce_scatter along each communicator, then MPI_Allgatherv in mirrored order."""
    wide = widened(array, kind.dtype) if kind.dtype in HALF else array
    operation = getattr(MPI, OPERATIONS[kind.op][1])
    pieces, divisor = [wide], 1
    for comm in comms:
        bounds = cuts(len(pieces[-1]), comm.size)
        own = pieces[-1][bounds[comm.rank] : bounds[comm.rank + 1]]
        sums = np.empty_like(own)
        comm.Reduce_scatter(pieces[-1], sums, _counts(bounds), operation)
        own[:] = sums
        pieces.append(own)
        divisor *= comm.size
    if kind.op == "avg":
        pieces[-1] /= divisor
    for comm, piece in reversed(list(zip(comms, pieces[:-1], strict=True))):
        bounds = cuts(len(piece), comm.size)
        comm.Allgatherv(MPI.IN_PLACE, [piece, _counts(bounds), bounds[:-1], _type(piece)])
    if wide is not array:
        store(wide, array, kind.dtype)


def _counts(bounds: Sequence[int]) -> list[int]:
    return [high - low for low, high in zip(bounds, bounds[1:], strict=False)]


def _type(array: Array) -> MPI.Datatype:
    return MPI.Datatype.fromcode(array.dtype.char)
