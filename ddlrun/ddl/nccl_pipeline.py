"""The allreduce over process groups of torch.distributed: along each dimension and back, chunks in flight.

While one chunk crosses racks the next is reduced inside the host, as in the engine over MPI. But these are collectives:
all learners must issue them in one order, or NCCL waits for ever. So chunks go as a wavefront: each round issues one
step of every chunk that is under way, the oldest first. Nothing here waits for another learner to decide the order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from ddlrun.ddl.partition import spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

# torch 2.13 renamed them, and warns of the old names.
NEW, OLD = ("reduce_scatter_single", "all_gather_single"), ("reduce_scatter_tensor", "all_gather_into_tensor")
OPERATIONS = {"sum": "SUM", "avg": "AVG", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
# What NCCL reduces; the other types go through the host's memory.
TYPES = frozenset("float16 bfloat16 float32 float64 int8 uint8 int32 int64".split())


class DimensionGroup(NamedTuple):
    """One dimension: its process group, the learners in it, this one's place among them."""

    group: Any
    size: int
    me: int


class _Calls(NamedTuple):
    """What one reduction calls; `divide` where the backend has no average of its own."""

    reduce_scatter: Any
    all_gather: Any
    op: Any
    divide: bool


class PipelinedReduction:
    """A reduction that is issued: `wait` before the tensor is used, `test` whether that would take time."""

    def __init__(self, row: Tensor, lanes: Sequence[Any]) -> None:
        # torch may give memory away that only other streams use; so it is held until they are waited for.
        self._row: Tensor | None = row
        self._events = [lane.record_event() for lane in lanes]

    def wait(self) -> None:
        """Let the current stream go on when the result is there; the host itself does not wait."""
        if self._row is not None and self._events:
            stream = torch.cuda.current_stream(self._row.device)
            for event in self._events:
                stream.wait_event(event)
        self._row = None

    def test(self) -> bool:
        """Say whether the result is there."""
        return all(event.query() for event in self._events)


def start(row: Tensor, op: str, dimensions: Sequence[DimensionGroup], longest: int) -> PipelinedReduction:
    """Begin to reduce a flat, contiguous tensor in place over all learners of the dimensions, all calling it alike.

    In chunks of at most `longest` elements. Tensors on a GPU: everything is issued when this returns, on streams of
    its own that begin where the current one is. Tensors of the CPU: all is done.
    """
    dimensions = [along for along in dimensions if along.size > 1]
    if not dimensions or not len(row):
        return PipelinedReduction(row, ())
    walks = list(_walks(row, dimensions, longest, _calls(op, gpu=row.is_cuda)))
    steps = 2 * len(dimensions)
    lanes = [torch.cuda.Stream(row.device) for _ in walks[:steps]] if row.is_cuda else []
    for lane in lanes:
        lane.wait_stream(torch.cuda.current_stream(row.device))
    _issue(walks, steps, lanes)
    return PipelinedReduction(row, lanes)


def _calls(op: str, *, gpu: bool) -> _Calls:
    reduce_scatter, all_gather = (getattr(distributed, name) for name in (NEW if hasattr(distributed, NEW[0]) else OLD))
    divide = op == "avg" and not gpu  # gloo has no average
    return _Calls(
        reduce_scatter, all_gather, getattr(distributed.ReduceOp, "SUM" if divide else OPERATIONS[op]), divide
    )


def _issue(walks: Sequence[Iterator[Any]], steps: int, lanes: Sequence[Any]) -> None:
    """Issue round by round one step of each chunk under way, on the chunk's own stream.

    A stream waits for the step before, and thus only for its own chunk: as many chunks are under way as there are
    steps, and the links of all dimensions have work.
    """
    under_way: dict[int, Any] = {}
    for turn in range(len(walks) + steps):
        for number in range(max(turn - steps, 0), min(turn + 1, len(walks))):
            with _on(lanes, number):
                if number in under_way:
                    under_way.pop(number).wait()
                work = next(walks[number], None)
                if work is not None:
                    under_way[number] = work


def _on(lanes: Sequence[Any], number: int) -> AbstractContextManager[Any]:
    return torch.cuda.stream(lanes[number % len(lanes)]) if lanes else nullcontext()


def _walks(row: Tensor, dimensions: Sequence[DimensionGroup], longest: int, calls: _Calls) -> Iterator[Iterator[Any]]:
    """Yield the walk of each chunk. Chunks divide among the learners; what is left over travels padded, as the last."""
    if len(dimensions) == 1:
        yield _plain(row, dimensions[0], calls)
        return
    size = 1
    for along in dimensions:
        size *= along.size
    whole = len(row) // size
    for low, high in spans(whole, max(longest // size, 1)) if whole else ():
        yield _walk(row[low * size : high * size], dimensions, calls)
    if len(row) % size:
        yield _padded(row[whole * size :], size, dimensions, calls)


def _plain(row: Tensor, along: DimensionGroup, calls: _Calls) -> Iterator[Any]:
    """With one dimension there is nothing to overlap: the backend's own allreduce."""
    yield distributed.all_reduce(row, calls.op, along.group, async_op=True)
    if calls.divide:
        row /= along.size


def _walk(chunk: Tensor, dimensions: Sequence[DimensionGroup], calls: _Calls) -> Iterator[Any]:
    """Yield a chunk's works, each issued when the one before is waited for; all in the chunk's own memory."""
    pieces = [chunk]
    for group, size, me in dimensions:
        whole, each = pieces[-1], len(pieces[-1]) // size
        own = whole[me * each : (me + 1) * each]
        yield calls.reduce_scatter(own, whole, calls.op, group, async_op=True)
        if calls.divide:
            own /= size
        pieces.append(own)
    for (group, _, _), whole, own in reversed(list(zip(dimensions, pieces, pieces[1:], strict=False))):
        yield calls.all_gather(whole, own, group, async_op=True)


def _padded(rest: Tensor, size: int, dimensions: Sequence[DimensionGroup], calls: _Calls) -> Iterator[Any]:
    padded = rest.new_zeros(size)
    padded[: len(rest)] = rest
    yield from _walk(padded, dimensions, calls)
    rest.copy_(padded[: len(rest)])
