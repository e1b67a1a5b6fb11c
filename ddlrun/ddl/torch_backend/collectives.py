"""The collectives of a process group, as operations of an engine."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST, dimension_algorithm
from ddlrun.ddl.group_schedules import broadcast, pairwise
from ddlrun.ddl.reduce_ops import find_reduce_op
from ddlrun.ddl.schedule import Dimension, mirror, reduce_scatter
from ddlrun.ddl.torch_backend.operators import find_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.operation import Operation
    from ddlrun.ddl.reduce_ops import ReduceOp as Operator
    from ddlrun.ddl.schedule import ScheduleStep
    from ddlrun.ddl.tcp.endpoint import Endpoint
    from ddlrun.ddl.torch_backend.tensor_bytes import TensorBytes

BYTES = find_reduce_op("uint8", "sum")


class GroupCollectives:
    """Starts collectives. Each function of it returns another one, which returns whether the collective is complete."""

    def __init__(self, endpoint: Endpoint, engine: Engine) -> None:
        self._endpoint, self._engine = endpoint, engine
        self._rank, self._size = endpoint.rank, endpoint.size
        self._line = [_dimension(tuple(range(endpoint.size)), endpoint.rank)]
        self._dimensions: list[Dimension] | None = None

    def allreduce(self, memory: TensorBytes, op: Any) -> Callable[[], bool]:  # noqa: ANN401 - a ReduceOp
        """Reduce in place over all members."""
        elements, dtype = memory.elements

        def steps(count: int, division: str) -> tuple[ScheduleStep, ...]:
            scatter = reduce_scatter(self._grid(), count, division=division)
            return (*scatter, *mirror(scatter))

        return self._start_chunks(elements, find_operator(op, dtype), steps)

    def broadcast(self, memory: TensorBytes, root: int) -> Callable[[], bool]:
        """Fill the memory with that of the root."""

        def steps(count: int, _division: str) -> tuple[ScheduleStep, ...]:
            return broadcast(self._rank, self._size, root, count)

        return self._start_chunks(memory.bytes, BYTES, steps)

    def reduce_scatter(self, memory: TensorBytes, op: Any) -> Callable[[], bool]:  # noqa: ANN401 - a ReduceOp
        """Reduce; only the block of this member is then valid."""
        elements, dtype = memory.elements
        operator = find_operator(op, dtype)
        steps = partial(reduce_scatter, self._line, division=operator.division)
        return self._start_whole(elements, operator, lambda count: tuple(steps(count)))

    def allgather(self, array: Any) -> Callable[[], bool]:  # noqa: ANN401 - a numpy array
        """Fill bytes with the blocks of all members, each of which has written its own."""
        return self._start_whole(array, BYTES, lambda count: tuple(mirror(reduce_scatter(self._line, count))))

    def exchange(self, blocks: Blocks) -> Callable[[], bool]:
        """Send a block to each member and receive one from each."""
        steps = pairwise(self._rank, blocks.sends, blocks.receives)
        return self._start_whole(blocks.buffer, BYTES, lambda _count: steps)

    def _start_chunks(self, elements: Any, operator: Operator, steps: Any) -> Callable[[], bool]:  # noqa: ANN401
        tuning = ONE_HOST if len(self._grid()) == 1 else BETWEEN_HOSTS
        longest = max(tuning.chunk // elements.itemsize, 1)
        return _is_over(self._engine.start(elements, operator, steps, longest, tuning.depth))

    def _start_whole(self, elements: Any, operator: Operator, steps: Any) -> Callable[[], bool]:  # noqa: ANN401
        longest = max(len(elements), 1)
        return _is_over(self._engine.start(elements, operator, lambda count, _division: steps(count), longest))

    def _grid(self) -> list[Dimension]:
        """Return the dimensions of an allreduce: the ranks of this host, then hosts; all ranks if hosts differ."""
        if self._dimensions is None:
            self._dimensions = self._find_dimensions()
        return self._dimensions

    def _find_dimensions(self) -> list[Dimension]:
        hosts = [self._endpoint.address_of(rank).host for rank in range(self._size)]
        by_host: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            by_host.setdefault(host, []).append(rank)
        if len(by_host) == 1 or len({len(ranks) for ranks in by_host.values()}) > 1:
            return self._line
        mine = by_host[hosts[self._rank]]
        at = mine.index(self._rank)
        across = tuple(ranks[at] for ranks in by_host.values())
        return [_dimension(tuple(mine), self._rank), _dimension(across, self._rank)]


class Blocks:
    """A buffer with the blocks for all members and, after them, room for the blocks of all members."""

    def __init__(self, parts: Sequence[Any], sizes: Sequence[int]) -> None:
        """Copy the blocks to be sent, numpy arrays of bytes; `sizes` are the bytes of those to be received."""
        self.sends = [0, *accumulate(part.size for part in parts)]
        """The bounds of the blocks for members."""
        total = self.sends[-1]
        self.receives = [total, *(total + size for size in accumulate(sizes))]
        """The bounds of the blocks of members."""
        self.buffer = np.empty(self.receives[-1], np.uint8)
        self.buffer[:total] = np.concatenate(parts)

    def received(self, member: int, rank: int) -> Any:  # noqa: ANN401 - a numpy array
        """Return the block of a member on the rank `rank`, whose own one was not sent."""
        bounds = self.sends if member == rank else self.receives
        return self.buffer[bounds[member] : bounds[member + 1]]


def _dimension(peers: tuple[int, ...], rank: int) -> Dimension:
    return Dimension(peers, peers.index(rank), dimension_algorithm("r", len(peers)))


def _is_over(operation: Operation) -> Callable[[], bool]:
    return lambda: not operation.left
