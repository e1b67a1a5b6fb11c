"""The collectives of a process group, as operations of an engine."""

from __future__ import annotations

import os
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import MessageClass
from ddlrun.ddl.group.block_chunks import AllgatherChunk, ArrayBlocks, BlockTransfer, ReduceScatterChunk
from ddlrun.ddl.group.dimensions import find_dimensions
from ddlrun.ddl.group.flat import FlatArray
from ddlrun.ddl.group.group import Group
from ddlrun.ddl.group.operation import Limits
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.launch_context import Options
from ddlrun.ddl.schedules.cache import ScheduleCache
from ddlrun.ddl.schedules.schedule import broadcast, pairwise
from ddlrun.ddl.selection.algorithm_selection import Selection, find_sizes, load_cache
from ddlrun.ddl.selection.late_host_monitor import make_monitors
from ddlrun.ddl.selection.wire_compression import find_wire
from ddlrun.ddl.torch.backend.works import MeasuringAllreduce
from ddlrun.topology import RankOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.ddl.group.block_chunks import BlockChunk
    from ddlrun.ddl.group.dimensions import GroupDimensions
    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.operation import Operation
    from ddlrun.ddl.group.reduce_ops import ReduceOp as Operator
    from ddlrun.ddl.group.settings import GroupSettings
    from ddlrun.ddl.schedules.schedule import ScheduleStep
    from ddlrun.ddl.selection.unequal_links import HostGroups
    from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes
    from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

BYTES = find_reduce_op("uint8", "sum")
# Chunks of small collectives that are in progress at the same time, so that their latencies overlap.
IN_FLIGHT = 8


class GroupCollectives:
    """Starts collectives. Each function of it returns another one, which returns whether the collective is complete."""

    def __init__(
        self, endpoint: Endpoint, engine: Engine, read_settings: Callable[[], GroupSettings], world: TcpCommunicator
    ) -> None:
        """Take the group's engine, a function that waits for its settings, and a communicator for measurements."""
        self._endpoint, self._engine, self._read_settings, self._world = endpoint, engine, read_settings, world
        self._rank, self._size = endpoint.rank, endpoint.size

    def allreduce(self, memory: TensorBytes, operator: Operator) -> Callable[[], bool]:
        """Reduce in place over all members."""
        elements, group = memory.elements[0], self.group
        message = group.classify(elements, operator, self._wire)

        def start() -> Operation | None:
            losses = group.restore_losses(message, elements, [FlatArray(elements, operator.dtype, elements.shape)])
            return group.execute(group.select(message), elements, operator, losses=losses)

        due = group.prepare(message, elements, operator)
        if due:
            return MeasuringAllreduce(due, self._start_barrier(), start)
        return _is_over(start())

    def broadcast(self, memory: TensorBytes, root: int) -> Callable[[], bool]:
        """Fill the memory with that of the root."""

        def steps(count: int, _division: str) -> tuple[ScheduleStep, ...]:
            return broadcast(self._rank, self._size, root, count)

        tuning = self.group.selection.sizes.of(memory.bytes.nbytes)
        limits = Limits(tuning.chunk, tuning.depth, tuning.connections)
        return _is_over(self._engine.start(memory.bytes, BYTES, steps, limits))

    def reduce_scatter(self, memory: TensorBytes, operator: Operator) -> Callable[[], bool]:
        """Reduce; only the block of this member is then valid."""
        return self._transfer(memory.elements[0], operator, ReduceScatterChunk)

    def allgather(self, array: Any) -> Callable[[], bool]:  # noqa: ANN401 - a numpy array
        """Fill bytes with the blocks of all members, each of which has written its own."""
        return self._transfer(array, BYTES, AllgatherChunk)

    def exchange(self, blocks: Blocks) -> Callable[[], bool]:
        """Send a block to each member and receive one from each."""
        steps = pairwise(self._rank, blocks.sends, blocks.receives)
        limits = Limits(max(len(blocks.buffer), 1), IN_FLIGHT)
        return _is_over(self._engine.start(blocks.buffer, BYTES, lambda _count, _division: steps, limits))

    def _transfer(self, elements: Any, operator: Operator, kind: type[BlockChunk]) -> Callable[[], bool]:  # noqa: ANN401
        """Begin a reduce-scatter or an allgather of equal blocks, in the order of the ranks."""
        size, sizes = len(elements) // self._size, self.group.selection.sizes
        own = elements[self._rank * size :][:size]
        transfer = BlockTransfer(ArrayBlocks(elements, self._size, self._block_order), own, self.group.schedules)
        tuning = sizes.of(elements.nbytes)
        if not sizes.local_ranks:  # the first and last chunks are not shorter here, so that links wait for them
            tuning = tuning._replace(chunk=max(tuning.chunk // 2, 1))
        return _is_over(transfer.start(self._engine, kind, operator, tuning))

    def _start_barrier(self) -> Operation | None:
        """Begin an allreduce of a byte."""
        message = MessageClass(1, BYTES.dtype, whole=True, blocking=False)
        return self.group.execute(self.group.selection.default(message), np.zeros(1, np.uint8), BYTES)

    @cached_property
    def group(self) -> Group:
        """The group, which is made in the first collective: before, addresses may be missing."""
        settings, world, (dimensions, hosts) = self._settings, self._world, self._dimensions
        topology = dimensions.topology
        inside = topology.ranks_per_host if len(hosts.ranks) > 1 else 1
        sizes = find_sizes(world, settings, hosts=len(hosts.ranks), host_ranks=inside)
        load = partial(load_cache, world, os.environ, topology, RankOrder.HOST, sizes.tuning)
        selection = Selection(
            Options(mode=settings.mode),
            sizes,
            learners=topology.dims,
            comm=world,
            load=load if settings.mode == "p" else None,
            layout=settings.layout(hosts),
        )
        schedules = ScheduleCache(dimensions.dimensions(settings.mode), self._rank, selection.layout)
        group = Group(world, self._engine, schedules=schedules, selection=selection)
        if not settings.links and not settings.is_part:
            group.monitors += make_monitors(group, world, hosts, dimensions.host_place(hosts))
        return group

    @cached_property
    def _dimensions(self) -> tuple[GroupDimensions, HostGroups]:
        hosts = [self._endpoint.address_of(rank).host for rank in range(self._size)]
        numbers = [self._endpoint.job.number(rank) for rank in range(self._size)]
        return find_dimensions(hosts, numbers, rank=self._rank, environ=os.environ)

    @cached_property
    def _block_order(self) -> list[int]:
        """The members, in the order of their blocks in a reduce-scatter over the dimensions."""
        return sorted(range(self._size), key=self._dimensions[0].index_of)

    @cached_property
    def _settings(self) -> GroupSettings:
        return self._read_settings()

    @cached_property
    def _wire(self) -> str:
        """The wire of float32, with its dimensions."""
        dimensions, hosts = self._dimensions
        wire = self.group.selection.tuning.wire
        return find_wire(wire, self._settings.mode, dimensions.axes, dimensions.leaving(hosts))


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


def _is_over(operation: Operation | None) -> Callable[[], bool]:
    return lambda: operation is None or not operation.left
