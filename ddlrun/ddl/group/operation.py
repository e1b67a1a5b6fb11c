"""Operations of the engine, and the chunks in which they are carried out."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlrun.ddl.schedules.partition import group_ranges
from ddlrun.ddl.schedules.schedule import mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.schedules.schedule import ScheduleStep

    Array = NDArray[Any]
    Schedule = Callable[[int, str], tuple[ScheduleStep, ...]]


# Queues of chunks: of parts that are reduced inside a host, usual chunks, those that wait for a late learner, and parts
# that are gathered inside a host. The chunks of a queue wait for those of queues before it.
SCATTER, USUAL, LATE, GATHER = QUEUES = range(4)


class Limits(NamedTuple):
    """The most elements of a chunk, chunks in flight, and connections to a rank of another host."""

    longest: int
    depth: int = 1
    connections: int = 1


class HostParts(NamedTuple):
    """The steps among the ranks of a host, which take parts of an array that are longer than chunks.

    The chunks of a part are shares of the block that its reduce-scatter leaves with this rank.

    scatter: scatter(count, division) returns the steps of the reduce-scatter of a part. own_block: own_block(count)
    returns the range of a part that belongs to this rank. longest: the most elements of a part.
    """

    scatter: Schedule
    own_block: Callable[[int], tuple[int, int]]
    longest: int


class Operation:
    """An operation in progress on a flat array. It is complete when `left`, its unfinished chunks, is 0.

    losses: an array of the same length, to which what compression loses is added, or None.
    """

    __slots__ = ("array", "combine", "division", "itemsize", "left", "limits", "losses", "memory")

    def __init__(
        self, array: Array, reduce_op: ReduceOp, chunks: int, limits: Limits, losses: Array | None = None
    ) -> None:
        self.array, self.combine, self.left, self.limits = array, reduce_op.combine, chunks, limits
        self.division, self.losses = reduce_op.division, losses
        # numpy has no byte view of an empty array. Without chunks it is never read.
        self.memory, self.itemsize = array.data.cast("B") if chunks else memoryview(b""), array.itemsize


class Chunk:
    """A part of an operation's array, from element `start` on, on its way through the steps of a schedule.

    array, memory: the operation's, or elements of its own with their bytes. at: index of the current step. open:
    messages of that step that are not complete. packed: memory of its own. parts: received elements that are still to
    be combined or stored, as (low, high, elements). scratch: the memory that they lie in. formers: the chunks
    with the steps before these ones, on the same elements. queue: its queue in the engine.
    """

    __slots__ = (
        "array", "at", "formers", "memory", "open", "operation", "packed", "parts", "queue", "scratch", "start",
        "steps", "tag",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation,
        steps: tuple[ScheduleStep, ...],
        start: int,
        formers: tuple[Chunk, ...] = (),
        queue: int = USUAL,
    ) -> None:
        self.operation, self.steps, self.start, self.formers, self.queue = operation, steps, start, formers, queue
        self.array, self.memory = operation.array, operation.memory
        self.at = self.open = self.tag = 0
        self.packed = bytearray()
        self.scratch: bytearray | None = None
        self.parts: list[tuple[int, int, Array]] = []

    def begin(self, pool: ScratchPool) -> None:
        """Prepare the elements, before the first step."""

    def end(self, pool: ScratchPool) -> None:
        """Store the results, after the last step."""

    @property
    def is_complete(self) -> bool:
        """True after the last step."""
        return self.at == len(self.steps)


def make_chunks(operation: Operation, schedule: Schedule, ranges: Iterable[tuple[int, int]]) -> list[Chunk]:
    """Return the chunks of an operation: two for a range whose schedule waits for a late learner, else one."""
    chunks = []
    for low, high in ranges:
        steps = schedule(high - low, operation.division)
        cut = next((at for at, step in enumerate(steps) if step.late), len(steps))
        chunks.append(Chunk(operation, steps[:cut], low))
        if cut < len(steps):
            chunks.append(Chunk(operation, steps[cut:], low, (chunks[-1],), LATE))
    return chunks


def make_parts(
    operation: Operation, schedule: Schedule, ranges: Sequence[tuple[int, int]], host: HostParts
) -> list[Chunk]:
    """Return the chunks of an operation whose ranks of a host exchange parts, each of several ranges.

    All ranks have the same number of chunks, each in the same place of the order.
    """
    chunks = []
    for part in group_ranges(ranges, host.longest):
        start, count = part[0][0], part[-1][1] - part[0][0]
        low, high = host.own_block(count)
        scatter = Chunk(operation, host.scatter(count, operation.division), start, queue=SCATTER)
        shares = [low + (high - low) * (at - start) // count for at in (start, *(end for _, end in part))]
        between = [
            Chunk(operation, schedule(end - first, operation.division), start + first, (scatter,))
            for first, end in pairwise(shares)
        ]
        gather = Chunk(operation, tuple(mirror(scatter.steps)), start, tuple(between), GATHER)
        chunks += [scatter, *between, gather]
    return chunks


class ChunkQueue:
    """Chunks that begin in order, while fewer are in flight than the next one's depth."""

    def __init__(self) -> None:
        self.waiting: deque[Chunk] = deque()
        self.in_flight: set[Chunk] = set()

    def begin_next(self) -> Chunk | None:
        """Move the next chunk to those in flight, and return it; None if it cannot begin. One is waiting."""
        chunk = self.waiting[0]
        if len(self.in_flight) >= chunk.operation.limits.depth:
            return None
        for former in chunk.formers:
            if not former.is_complete:
                return None
        self.in_flight.add(self.waiting.popleft())
        return chunk


class ScratchPool:
    """Scratch memory of finished chunks, for those that follow."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def borrow(self, scratch: bytearray | None, nbytes: int) -> bytearray:
        """Return scratch memory of at least `nbytes`: the chunk's own, that of a finished chunk, or new memory."""
        if scratch is not None and len(scratch) >= nbytes:
            return scratch
        if scratch is not None:
            self._free.append(scratch)
        long_enough = [place for place, memory in enumerate(self._free) if len(memory) >= nbytes]
        if not long_enough:
            self._free = sorted(self._free, key=len)[:-1]  # arrays of growing lengths leave no more than was in use
            return bytearray(nbytes)
        return self._free.pop(min(long_enough, key=lambda place: len(self._free[place])))

    def give_back(self, scratch: bytearray) -> None:
        """Take the scratch memory of a finished chunk."""
        self._free.append(scratch)
