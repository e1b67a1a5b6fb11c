"""Operations of the engine, and the chunks in which they are carried out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from ddlrun.ddl.reduce_ops import ReduceOp
    from ddlrun.ddl.schedule import ScheduleStep

    Array = NDArray[Any]
    Schedule = Callable[[int, str], tuple[ScheduleStep, ...]]


class Limits(NamedTuple):
    """The most elements of a chunk, chunks in flight, and connections to a rank of another host."""

    longest: int
    depth: int = 1
    connections: int = 1


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
    be combined or stored, as (low, high, elements). scratch: the memory that they lie in. former: the chunk with the
    steps before these ones, on the same elements, or None.
    """

    __slots__ = (
        "array", "at", "former", "memory", "open", "operation", "packed", "parts", "scratch", "start", "steps", "tag",
    )  # fmt: skip

    def __init__(
        self, operation: Operation, steps: tuple[ScheduleStep, ...], start: int, former: Chunk | None = None
    ) -> None:
        self.operation, self.steps, self.start, self.former = operation, steps, start, former
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
            chunks.append(Chunk(operation, steps[cut:], low, chunks[-1]))
    return chunks


class ChunkQueue:
    """Chunks that begin in order, while fewer are in flight than the next one's depth."""

    def __init__(self) -> None:
        self.waiting: deque[Chunk] = deque()
        self.in_flight: set[Chunk] = set()

    def begin_next(self) -> Chunk | None:
        """Move the next chunk to those in flight, and return it; None if it cannot begin."""
        if not self.waiting:
            return None
        chunk = self.waiting[0]
        if len(self.in_flight) >= chunk.operation.limits.depth or not (
            chunk.former is None or chunk.former.is_complete
        ):
            return None
        self.in_flight.add(self.waiting.popleft())
        return chunk


class ScratchPool:
    """Scratch memory of finished chunks, for those that follow."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def borrow(self, scratch: bytearray | None, nbytes: int) -> bytearray:
        """Return scratch memory of at least `nbytes`: the chunk's own, a finished chunk's, or new memory."""
        if scratch is None and self._free:
            scratch = self._free.pop()
        return scratch if scratch is not None and len(scratch) >= nbytes else bytearray(nbytes)

    def give_back(self, scratch: bytearray) -> None:
        """Take the scratch memory of a finished chunk."""
        self._free.append(scratch)
