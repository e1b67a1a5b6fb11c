"""Chunks of a reduce-scatter and of an allgather: a part of the block of each learner, in memory of their own.

In the array the blocks of the learners follow each other, so a range of it belongs to few learners, and ranges would
use one kind of link after the other. The same part of every block uses all links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.ddl.group.operation import Chunk, Limits, Operation
from ddlrun.ddl.schedules.cache import Collective
from ddlrun.ddl.schedules.partition import chunk_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.operation import ScratchPool
    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.schedules.cache import ScheduleCache
    from ddlrun.ddl.schedules.schedule import ScheduleStep

    Array = NDArray[Any]


class ArrayBlocks:
    """A flat array as blocks of nearly equal length, the longer ones first.

    `order` has the numbers of the blocks in the order of the schedule; then all have the same length. Default: the
    order of the array.
    """

    def __init__(self, array: Array, count: int, order: Sequence[int] = ()) -> None:
        each, longer = divmod(len(array), count)
        end = longer * (each + 1)
        self.longest = each + 1 if longer else each
        """Elements of the first block."""
        self.array = array
        self._tables = [array[:end].reshape(longer, each + 1), array[end:].reshape(count - longer, each)]
        self._rows: Any = np.array(order) if order else slice(None)

    def count(self, low: int, high: int) -> int:
        """Return the number of elements in the places low to high of all blocks."""
        return sum(table[:, low:high].size for table in self._tables)

    def load(self, low: int, high: int, target: Array) -> None:
        """Copy the places low to high of all blocks to a flat array, block by block."""
        at = 0
        for table in filter(len, self._tables):
            part = table[self._rows, low:high]
            target[at : at + part.size].reshape(part.shape)[:] = part
            at += part.size

    def store(self, low: int, high: int, source: Array) -> None:
        """Copy a flat array to the places low to high of all blocks: the inverse of `load`."""
        at = 0
        for table in filter(len, self._tables):
            shape = table[:, low:high].shape
            end = at + shape[0] * shape[1]
            table[self._rows, low:high] = source[at:end].reshape(shape)
            at = end


class BlockTransfer(NamedTuple):
    """A reduce-scatter of `blocks` to `own`, or an allgather of `own` to `blocks`.

    own: the block of this learner. schedules: those of this learner.
    """

    blocks: ArrayBlocks
    own: Array
    schedules: ScheduleCache

    def start(self, engine: Engine, kind: type[BlockChunk], reduce_op: ReduceOp, tuning: Tuning) -> Operation:
        """Begin the transfer, in chunks of the tuning's size and number."""
        array = self.blocks.array
        limits = Limits(max(tuning.chunk // array.itemsize, 1), tuning.depth, tuning.connections)
        ranges = list(self._ranges(limits.longest))
        operation = Operation(array, reduce_op, len(ranges), limits)
        engine.begin(self._make_chunk(kind, operation, places) for places in ranges)
        return operation

    def _make_chunk(self, kind: type[BlockChunk], operation: Operation, places: tuple[int, int]) -> BlockChunk:
        steps = self.schedules.steps(kind.collective, self.blocks.count(*places), operation.division)
        return kind(operation, steps, places, self)

    def _ranges(self, longest: int) -> Iterator[tuple[int, int]]:
        """Yield the places of the blocks that form a chunk of about `longest` elements."""
        if self.blocks.longest:
            parts = self.blocks.count(0, 1)
            yield from chunk_ranges(self.blocks.longest, max(longest // parts, 1))


class BlockChunk(Chunk):
    """The places low to high of all blocks, on their way through the steps of a collective."""

    __slots__ = ("_high", "_low", "_transfer")
    collective: Collective

    def __init__(
        self, operation: Operation, steps: tuple[ScheduleStep, ...], places: tuple[int, int], transfer: BlockTransfer
    ) -> None:
        super().__init__(operation, steps, 0)
        self._low, self._high = places
        self._transfer = transfer

    def begin(self, pool: ScratchPool) -> None:
        """Borrow memory for the elements, and copy those that this learner contributes."""
        count, dtype = self._transfer.blocks.count(self._low, self._high), self._transfer.own.dtype
        self.packed = pool.borrow(None, count * dtype.itemsize)
        self.array = np.frombuffer(self.packed, dtype, count)
        self.memory = self.array.data.cast("B")

    def end(self, pool: ScratchPool) -> None:
        """Copy the results, and give the memory back."""
        self.array, self.memory = self.operation.array, self.operation.memory
        pool.give_back(self.packed)

    def _own(self) -> tuple[Array, Array]:
        """Return this learner's part of the chunk, and its place in the learner's block."""
        low, high = self._transfer.schedules.own_block(len(self.array))
        return self.array[low:high], self._transfer.own[self._low : self._low + high - low]


class ReduceScatterChunk(BlockChunk):
    """A chunk whose sum is stored in the block of this learner."""

    __slots__ = ()
    collective = Collective("reduce_scatter")

    def begin(self, pool: ScratchPool) -> None:
        """Copy a part of all blocks."""
        super().begin(pool)
        self._transfer.blocks.load(self._low, self._high, self.array)

    def end(self, pool: ScratchPool) -> None:
        """Store the sum."""
        part, place = self._own()
        place[:] = part
        super().end(pool)


class AllgatherChunk(BlockChunk):
    """A chunk with the blocks of all learners, which are stored in the array."""

    __slots__ = ()
    collective = Collective("allgather")

    def begin(self, pool: ScratchPool) -> None:
        """Copy a part of this learner's block."""
        super().begin(pool)
        part, place = self._own()
        part[:] = place

    def end(self, pool: ScratchPool) -> None:
        """Store a part of all blocks."""
        self._transfer.blocks.store(self._low, self._high, self.array)
        super().end(pool)
