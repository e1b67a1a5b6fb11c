"""The pipelined allreduce over process groups of torch.distributed, with several chunks in flight.

While one chunk crosses racks the next is reduced inside the host, as in the engine over MPI. But these are collectives:
all learners must issue them in the same order, or NCCL blocks indefinitely. Therefore the chunks advance as a
wavefront: each round issues the next step of every chunk in flight, the oldest chunk first. The order depends on sizes
alone.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from ddlrun.ddl.schedules.partition import chunk_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

# torch 2.13 renamed these functions, and warns of the old names.
NEW, OLD = ("reduce_scatter_single", "all_gather_single"), ("reduce_scatter_tensor", "all_gather_into_tensor")
OPERATIONS = {"sum": "SUM", "avg": "AVG", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
# The dtypes that NCCL reduces. Others are reduced in host memory.
TYPES = frozenset("float16 bfloat16 float32 float64 int8 uint8 int32 int64".split())


class _Calls(NamedTuple):
    """The collectives and the operation of a reduction; `divide` if the backend has no average of its own."""

    reduce_scatter: Any
    all_gather: Any
    op: Any
    divide: bool


class PipelinedReduction:
    """A reduction that has been issued: `wait` before its tensor is used."""

    def __init__(self, row: Tensor, streams: Sequence[Any]) -> None:
        # torch may reuse memory that only side streams use, so the row is held until they are waited for.
        self._row: Tensor | None = row
        self._events = [stream.record_event() for stream in streams]

    def wait(self) -> None:
        """Make the current stream wait for the result. The host does not wait."""
        if self._row is not None and self._events:
            current = torch.cuda.current_stream(self._row.device)
            for event in self._events:
                current.wait_event(event)
        self._row = None

    def test(self) -> bool:
        """Return True if the result is in the tensor."""
        return all(event.query() for event in self._events)


def start(row: Tensor, op: str, dimensions: Sequence[ProcessGroup], longest: int) -> PipelinedReduction:
    """Begin to reduce a flat, contiguous tensor in place over all learners of the dimensions.

    All learners call it with equal sizes, in the same order. For a tensor on a GPU everything is issued on return, on
    streams that begin where the current one is. For a tensor on the CPU the reduction is complete on return.

    Args:
        row: The tensor.
        op: "sum", "avg", "max", "min" or "prod".
        dimensions: Their process groups, in the order in which they are reduced.
        longest: Elements of a chunk, at most.
    """
    dimensions = [dimension for dimension in dimensions if dimension.size() > 1]
    if not dimensions or not len(row):
        return PipelinedReduction(row, ())
    chunks = list(_chunks(row, dimensions, longest, _find_calls(op, gpu=row.is_cuda)))
    steps = 2 * len(dimensions)
    streams = [torch.cuda.Stream(row.device) for _ in chunks[:steps]] if row.is_cuda else []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(row.device))
    _issue(chunks, steps, streams)
    return PipelinedReduction(row, streams)


def _find_calls(op: str, *, gpu: bool) -> _Calls:
    names = NEW if hasattr(distributed, NEW[0]) else OLD
    reduce_scatter, all_gather = (getattr(distributed, name) for name in names)
    divide = op == "avg" and not gpu  # gloo has no average
    operation = getattr(distributed.ReduceOp, "SUM" if divide else OPERATIONS[op])
    return _Calls(reduce_scatter, all_gather, operation, divide)


def _issue(chunks: Sequence[Iterator[Any]], steps: int, streams: Sequence[Any]) -> None:
    """Issue one step of each chunk in flight per round, on the chunk's own stream.

    A stream waits for the step before, and thus for its own chunk only. As many chunks are in flight as there are
    steps, so the links of all dimensions have work.
    """
    in_flight: dict[int, Any] = {}
    for turn in range(len(chunks) + steps):
        for number in range(max(turn - steps, 0), min(turn + 1, len(chunks))):
            with torch.cuda.stream(streams[number % len(streams)]) if streams else nullcontext():
                if number in in_flight:
                    in_flight.pop(number).wait()
                work = next(chunks[number], None)
                if work is not None:
                    in_flight[number] = work


def _chunks(row: Tensor, dimensions: Sequence[ProcessGroup], longest: int, calls: _Calls) -> Iterator[Iterator[Any]]:
    """Yield an iterator over the steps of each chunk.

    Chunks divide evenly among the learners. The remainder is the last chunk, which is padded.
    """
    if len(dimensions) == 1:
        yield _reduce_at_once(row, dimensions[0], calls)
        return
    size = math.prod(dimension.size() for dimension in dimensions)
    whole = len(row) // size
    for low, high in chunk_ranges(whole, max(longest // size, 1)) if whole else ():
        yield _reduce_chunk(row[low * size : high * size], dimensions, calls)
    if len(row) % size:
        yield _reduce_padded(row[whole * size :], size, dimensions, calls)


def _reduce_at_once(row: Tensor, dimension: ProcessGroup, calls: _Calls) -> Iterator[Any]:
    """Yield the backend's own allreduce: with one dimension there is nothing to overlap."""
    yield distributed.all_reduce(row, calls.op, dimension, async_op=True)
    if calls.divide:
        row /= dimension.size()


def _reduce_chunk(chunk: Tensor, dimensions: Sequence[ProcessGroup], calls: _Calls) -> Iterator[Any]:
    """Yield the steps of a chunk, each issued when the one before has been waited for, in the chunk's own memory."""
    pieces = [chunk]
    for dimension in dimensions:
        whole, each = pieces[-1], len(pieces[-1]) // dimension.size()
        own = whole[dimension.rank() * each : (dimension.rank() + 1) * each]
        yield calls.reduce_scatter(own, whole, calls.op, dimension, async_op=True)
        if calls.divide:
            own /= dimension.size()
        pieces.append(own)
    for dimension, whole, own in reversed(list(zip(dimensions, pieces, pieces[1:], strict=False))):
        yield calls.all_gather(whole, own, dimension, async_op=True)


def _reduce_padded(rest: Tensor, size: int, dimensions: Sequence[ProcessGroup], calls: _Calls) -> Iterator[Any]:
    padded = rest.new_zeros(size)
    padded[: len(rest)] = rest
    yield from _reduce_chunk(padded, dimensions, calls)
    rest.copy_(padded[: len(rest)])
