"""Reductions of flat arrays in host memory over a group."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import FLAT_MODES
from ddlrun.ddl.group.block_chunks import AllgatherChunk, ArrayBlocks, BlockTransfer, ReduceScatterChunk
from ddlrun.ddl.group.flat import FlatArray
from ddlrun.ddl.group.handle import Handle
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.transports.communicators import message_errors
from ddlrun.ddl.transports.interruption import InterruptionGuard
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.group.block_chunks import BlockChunk
    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.transports.mpi.collectives import SmallMessagePath
    from ddlrun.errors import LostRankError


class HostReducer:
    """Reduces flat arrays over a grid. All ranks create it together, and `free` it before MPI ends.

    `usual_wire` is the wire of calls that name none.
    """

    def __init__(self, grid: Grid, group: Group, usual_wire: str) -> None:
        self.grid, self.group, self.schedules = grid, group, group.schedules
        self.options, self.tuning = group.selection.options, group.selection.tuning
        self._usual_wire = usual_wire
        self._is_alone = lru_cache(maxsize=16)(self._has_no_peers)
        self.guard = InterruptionGuard(str(grid), self._abandon if grid.size > 1 else None)
        self.small_messages = self._make_small_message_path()

    def reduce(
        self, arrays: Sequence[FlatArray], op: str, axes: str = "", wire: str = "", *, blocking: bool = True
    ) -> Handle:
        """Begin to reduce arrays in place; if `blocking`, small ones may be reduced on return.

        `wire` is complete, as from `find_wire`.
        """
        self.compare(arrays, op, axes, wire)
        group, whole = self.group, not axes or set(axes) == set(self.grid.axes)
        handle = Handle(group.engine, self.guard, f"{self.grid}: all_reduce: {op} of {', '.join(map(str, arrays))}")
        for bucket in () if self._is_alone(axes) else make_buckets(arrays, self.tuning):
            elements = bucket[0].elements if len(bucket) == 1 else np.concatenate([array.elements for array in bucket])
            reduce_op = find_reduce_op(bucket[0].dtype, op)
            message = group.classify(elements, reduce_op, wire, whole=whole, blocking=blocking)
            self.guard.begin_messages()
            for measure in group.prepare(message, elements, reduce_op):
                measure()
            algorithm = group.select(message)
            if algorithm.method == "flat" and self.small_messages is not None and wire == self._usual_wire:
                self.small_messages.learn(elements, reduce_op)
            losses = group.restore_losses(message, elements, bucket, axes)
            try:
                operation = group.execute(algorithm, elements, reduce_op, axes, losses)
            except message_errors() as error:  # a message of another length that was here before its buffer
                raise handle.explain(error) from error
            if operation is None:
                unpack_bucket(bucket, elements)
            else:
                handle.add(operation, partial(unpack_bucket, bucket, elements))
        return handle

    def reduce_scatter(self, array: FlatArray, reduce_op: ReduceOp) -> None:
        """Reduce an array; the block of this learner gets the result."""
        self._transfer(array, reduce_op, ReduceScatterChunk)

    def allgather(self, array: FlatArray) -> None:
        """Fill an array from the blocks of all learners, each of which has its own."""
        self._transfer(array, find_reduce_op(array.dtype, "sum"), AllgatherChunk)

    def _transfer(self, array: FlatArray, reduce_op: ReduceOp, kind: type[BlockChunk]) -> None:
        elements, engine = array.elements, self.group.engine
        own = elements[slice(*self.schedules.own_block(len(elements)))]
        transfer = BlockTransfer(ArrayBlocks(elements, self.grid.size), own, self.schedules)
        self.guard.begin_messages()
        engine.wait(transfer.start(engine, kind, reduce_op, self.tuning))
        array.write_back()

    def compare(self, arrays: Sequence[FlatArray], op: str, axes: str = "", wire: str = "") -> None:
        """With -dbg_level, check that all learners reduce equal arrays, because messages must have equal lengths.

        Raises InputError if another learner reduces other arrays.
        """
        if not self.options.dbg_level or self.grid.size == 1:
            return
        self.guard.begin_messages()
        over = "".join(self.grid.axes[i] for i in self.grid.places(axes or self.grid.axes))
        mine = f"{op} of {', '.join(map(str, arrays))}{axes and f' over {over}'}{wire and f' by {wire}'}"
        descriptions = sorted(self.grid.members(over).allgather((self.grid.rank, mine)))
        others = [f"rank {rank} {theirs}" for rank, theirs in descriptions if theirs != mine]
        if others:
            raise InputError(
                f"{self.grid}: all_reduce: {mine} here, but {others[0]}; all reduce the same, in one order"
            )

    def _abandon(self, error: LostRankError) -> None:
        """Give up what is in progress; over TCP, let the other ranks see that."""
        self.group.engine.is_interrupted = True
        self.grid.base.abandon(error)

    def _has_no_peers(self, axes: str) -> bool:
        """Return True if no other rank takes part. Raises InputError if the grid has no dimension of a letter."""
        return all(self.grid.topology.dims[number] == 1 for number in self.grid.places(axes or self.grid.axes))

    def _make_small_message_path(self) -> SmallMessagePath | None:
        collectives = self.group.communicator.collectives
        if collectives is None or self.options.mode not in FLAT_MODES or self.options.dbg_level:
            return None
        path: SmallMessagePath = collectives.SmallMessagePath(self.group.communicator)
        return path


def make_buckets(arrays: Sequence[FlatArray], tuning: Tuning) -> list[list[FlatArray]]:
    """Divide arrays into buckets of one dtype and at most `tuning.bucket` bytes.

    An array of `tuning.chunk` bytes or more is a bucket of its own.
    """
    buckets, open_buckets, sizes = list[list[FlatArray]](), dict[str, list[FlatArray]](), dict[str, int]()
    for array in arrays:
        size = array.elements.nbytes
        if size >= min(tuning.chunk, tuning.bucket):
            buckets.append([array])
            continue
        if sizes.get(array.dtype, 0) + size > tuning.bucket:
            buckets.append(open_buckets.pop(array.dtype))
            sizes[array.dtype] = 0
        open_buckets.setdefault(array.dtype, []).append(array)
        sizes[array.dtype] = sizes.get(array.dtype, 0) + size
    return buckets + list(open_buckets.values())


def unpack_bucket(bucket: Sequence[FlatArray], elements: Any) -> None:  # noqa: ANN401
    """Write the results of a bucket to its arrays; `elements` is their concatenation, or the single array itself."""
    at = 0
    for array in bucket if len(bucket) > 1 else ():
        array.elements[:] = elements[at : at + len(array.elements)]
        at += len(array.elements)
    for array in bucket:
        array.write_back()
