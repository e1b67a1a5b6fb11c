"""The collectives of a process group, as operations of an engine."""

from __future__ import annotations

import os
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import (
    BETWEEN_HOSTS,
    ONE_HOST,
    TCP_DEPTH,
    grow_chunks,
    host_part,
    wait_for_late_host,
)
from ddlrun.ddl import late_schedule, weighted_schedule
from ddlrun.ddl.block_chunks import AllgatherChunk, ArrayBlocks, BlockTransfer, ReduceScatterChunk
from ddlrun.ddl.group_dimensions import find_dimensions
from ddlrun.ddl.group_schedules import broadcast, pairwise
from ddlrun.ddl.late_host_monitor import LEAST_HOSTS, LateHostMonitor
from ddlrun.ddl.nic_monitor import LEAST_BYTES, make_monitor
from ddlrun.ddl.operation import HostParts, Limits
from ddlrun.ddl.reduce_ops import find_reduce_op
from ddlrun.ddl.schedule import between_hosts, mirror, own_block, reduce_scatter, scatter_part
from ddlrun.ddl.torch_backend.measuring_allreduce import (
    EQUAL,
    LAST,
    SIZED,
    MeasuringAllreduce,
    Monitors,
    can_size_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, Tuning
    from ddlrun.ddl.block_chunks import BlockChunk
    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.group_dimensions import GroupDimensions
    from ddlrun.ddl.operation import Operation
    from ddlrun.ddl.reduce_ops import ReduceOp as Operator
    from ddlrun.ddl.schedule import ScheduleStep
    from ddlrun.ddl.tcp.communicator import TcpCommunicator
    from ddlrun.ddl.tcp.endpoint import Endpoint
    from ddlrun.ddl.torch_backend.group_settings import GroupSettings
    from ddlrun.ddl.torch_backend.tensor_bytes import TensorBytes
    from ddlrun.ddl.weighted_schedule import HostLayout

BYTES = find_reduce_op("uint8", "sum")
# Chunks of small collectives that are in progress at the same time, so that their latencies overlap.
IN_FLIGHT = 8


class GroupCollectives:
    """Starts collectives. Each function of it returns another one, which returns whether the collective is complete."""

    def __init__(self, endpoint: Endpoint, engine: Engine, settings: GroupSettings, world: TcpCommunicator) -> None:
        """Take the group's engine, and a communicator for measurements of the NICs."""
        self._endpoint, self._engine, self._settings, self._world = endpoint, engine, settings, world
        self._rank, self._size = endpoint.rank, endpoint.size
        self._dimensions: GroupDimensions | None = None
        self.late_host: int | None = None
        """The host that is taken last, as its place in the dimension between hosts."""
        self._reduction = lru_cache(maxsize=256)(self._make_reduction)
        """reduction(algorithm, count, division): the steps of an allreduce of `count` elements. For `division` see
        `ReduceOp`."""

        self._stage = lru_cache(maxsize=256)(self._make_stage)
        """stage(schedule, count, division): the steps of `scatter_part` or `between_hosts` for `count` elements."""

    def allreduce(self, memory: TensorBytes, operator: Operator) -> Callable[[], bool]:
        """Reduce in place over all members."""
        elements = memory.elements[0]
        due = self._monitors.are_due(self, elements, operator)
        if due:
            return MeasuringAllreduce(self, due, elements, operator)
        return _is_over(self.start_usual_allreduce(elements, operator))

    def start_usual_allreduce(self, elements: Any, operator: Operator) -> Operation:  # noqa: ANN401
        """Begin an allreduce: with blocks sized by the links if these are unequal, or with a late host last.

        Measured rates and late hosts count for large arrays alone.
        """
        algorithm = EQUAL
        if self.layout is not None and (self._monitors.nics is None or can_size_blocks(elements, operator)):
            algorithm = SIZED
        elif self.late_host is not None and elements.nbytes >= LEAST_BYTES:
            algorithm = LAST
        return self.start_allreduce(elements, operator, algorithm)

    def start_allreduce(self, elements: Any, operator: Operator, algorithm: AllreduceAlgorithm) -> Operation:  # noqa: ANN401
        """Begin an allreduce by EQUAL, SIZED or LAST."""
        if algorithm == LAST:
            waits = wait_for_late_host(elements.nbytes)
            limits = Limits(max(waits.chunk // elements.itemsize, 1), waits.depth)
            return self._engine.start(elements, operator, partial(self._reduction, algorithm), limits)
        tuning = self._tuning(elements.nbytes, weighted=algorithm == SIZED)
        # On unequal hosts, ranks differ in what they have in common with others.
        part = 0 if self.layout is not None else host_part(elements.nbytes, tuning.chunk, self._host_ranks)
        if not part:
            return self._start_chunks(elements, operator, partial(self._reduction, algorithm), tuning)
        host = HostParts(
            partial(self._stage, scatter_part),
            partial(own_block, self._grid().dimensions[:1]),
            part // elements.itemsize,
        )
        return self._start_chunks(elements, operator, partial(self._stage, between_hosts), tuning, host)

    def set_layout(self, layout: HostLayout | None) -> None:
        """Size blocks by another layout from the next allreduce on. All members call it together."""
        self.layout = layout
        self._reduction.cache_clear()

    def set_late_host(self, host: int | None) -> None:
        """Take another host last from the next allreduce on. All members call it together."""
        self.late_host = host
        self._reduction.cache_clear()

    def broadcast(self, memory: TensorBytes, root: int) -> Callable[[], bool]:
        """Fill the memory with that of the root."""

        def steps(count: int, _division: str) -> tuple[ScheduleStep, ...]:
            return broadcast(self._rank, self._size, root, count)

        return _is_over(self._start_chunks(memory.bytes, BYTES, steps, self._tuning(len(memory.bytes))))

    def reduce_scatter(self, memory: TensorBytes, operator: Operator) -> Callable[[], bool]:
        """Reduce; only the block of this member is then valid."""
        return self._transfer(memory.elements[0], operator, ReduceScatterChunk)

    def allgather(self, array: Any) -> Callable[[], bool]:  # noqa: ANN401 - a numpy array
        """Fill bytes with the blocks of all members, each of which has written its own."""
        return self._transfer(array, BYTES, AllgatherChunk)

    def exchange(self, blocks: Blocks) -> Callable[[], bool]:
        """Send a block to each member and receive one from each."""
        steps = pairwise(self._rank, blocks.sends, blocks.receives)
        return self._start_whole(blocks.buffer, BYTES, lambda _count: steps)

    def _start_chunks(
        self,
        elements: Any,  # noqa: ANN401
        operator: Operator,
        steps: Any,  # noqa: ANN401
        tuning: Tuning,
        host: HostParts | None = None,
    ) -> Operation:
        limits = Limits(max(tuning.chunk // elements.itemsize, 1), tuning.depth, tuning.connections)
        return self._engine.start(elements, operator, steps, limits, host=host)

    def _start_whole(self, elements: Any, operator: Operator, steps: Any) -> Callable[[], bool]:  # noqa: ANN401
        limits = Limits(max(len(elements), 1), IN_FLIGHT)
        operation = self._engine.start(elements, operator, lambda count, _division: steps(count), limits)
        return _is_over(operation)

    def _transfer(self, elements: Any, operator: Operator, kind: type[BlockChunk]) -> Callable[[], bool]:  # noqa: ANN401
        """Begin a reduce-scatter or an allgather of equal blocks, in the order of the ranks."""
        grid = self._grid()
        dimensions, order = grid.dimensions, grid.order
        size = len(elements) // self._size
        transfer = BlockTransfer(
            blocks=ArrayBlocks(elements, self._size, order),
            own=elements[self._rank * size :][:size],
            schedule=self._steps(kind),
            own_block=partial(own_block, dimensions),
        )
        tuning = self._tuning(elements.nbytes)
        if len(set(self._hosts)) > 1:  # the first and last chunks are not shorter here, so that links wait for them
            tuning = tuning._replace(chunk=max(tuning.chunk // 2, 1))
        return _is_over(transfer.start(self._engine, kind, operator, tuning))

    def _make_reduction(self, algorithm: AllreduceAlgorithm, count: int, division: str) -> tuple[ScheduleStep, ...]:
        if algorithm == LAST and self.late_host is not None:
            return late_schedule.allreduce(self._grid().dimensions, self.late_host, count, division=division)
        scatter = reduce_scatter(self._grid().dimensions, count, division=division)
        if algorithm == SIZED and self.layout is not None and division != "each":
            scatter = weighted_schedule.reduce_scatter(self.layout, self._rank, count, division=bool(division))
        return (*scatter, *mirror(scatter))

    def _make_stage(self, schedule: Any, count: int, division: str) -> tuple[ScheduleStep, ...]:  # noqa: ANN401
        return tuple(schedule(self._grid().dimensions, count, division=division))

    @cached_property
    def _host_ranks(self) -> int:
        """The size of the first dimension if that is inside the hosts and others are not, otherwise 1."""
        dimensions = self._grid().dimensions  # none in a group of one rank
        inside = dimensions[0].peers if len(dimensions) > 1 else ()
        return len(inside) if len({self._hosts[peer] for peer in inside}) == 1 else 1

    def _steps(self, kind: type[BlockChunk]) -> Callable[[int, str], tuple[ScheduleStep, ...]]:
        """Return the schedule of a reduce-scatter or an allgather; its chunks have one or two lengths."""
        dimensions = self._grid().dimensions

        @cache
        def steps(count: int, division: str) -> tuple[ScheduleStep, ...]:
            scatter = reduce_scatter(dimensions, count, division=division)
            return tuple(scatter if kind is ReduceScatterChunk else mirror(scatter))

        return steps

    def _tuning(self, nbytes: int, *, weighted: bool = False) -> Tuning:
        """Return the sizes for an array of `nbytes`, with equal blocks or weighted ones."""
        one_host = len(set(self._hosts)) == 1
        default = (ONE_HOST if one_host else BETWEEN_HOSTS)._replace(depth=TCP_DEPTH)
        local_ranks = self._size if one_host else 0
        tuning = self._settings.tuning(grow_chunks(default, nbytes, local_ranks=local_ranks, weighted=weighted))
        return tuning._replace(depth=max(tuning.depth, tuning.connections))

    def _grid(self) -> GroupDimensions:
        """Return the dimensions, which are found in the first collective: before, addresses may be missing."""
        if self._dimensions is None:
            numbers = [self._endpoint.job.number(rank) for rank in range(self._size)]
            self._dimensions = find_dimensions(self._hosts, numbers, rank=self._rank, environ=os.environ)
        return self._dimensions

    @cached_property
    def layout(self) -> HostLayout | None:
        """The layout of unequal hosts or links, None if all are equal."""
        return self._settings.layout(self._grid().hosts)

    @cached_property
    def _monitors(self) -> Monitors:
        """The monitors of the NICs and of a late host; each is None if it is not needed."""
        nics = late = None
        if self.layout is None and self._settings.may_measure:
            grid = self._grid()
            dimensions, hosts = grid.dimensions, grid.hosts
            interval = self._settings.tuning(BETWEEN_HOSTS).measure
            nics = make_monitor(self._world, hosts, interval)
            if nics is not None and len(dimensions[-1].peers) == len(hosts.ranks) >= LEAST_HOSTS:
                late = LateHostMonitor(self._world, dimensions[-1].me)
        return Monitors(nics, late, self._engine, self._world)

    @cached_property
    def _hosts(self) -> list[str]:
        """The host of each member."""
        return [self._endpoint.address_of(rank).host for rank in range(self._size)]


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


def _is_over(operation: Operation) -> Callable[[], bool]:
    return lambda: not operation.left
