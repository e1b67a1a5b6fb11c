"""Reductions of flat arrays in host memory: the choice of an algorithm, and its execution."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import (
    FLAT_MODES,
    LATE,
    WEIGHTED,
    MessageClass,
    host_part,
    size_blocks,
    wait_for_late_host,
)
from ddlrun.ddl.block_chunks import AllgatherChunk, ArrayBlocks, BlockTransfer, ReduceScatterChunk
from ddlrun.ddl.engine import Engine
from ddlrun.ddl.fusion import make_buckets, unpack_bucket
from ddlrun.ddl.handle import Handle
from ddlrun.ddl.int8_compression import ErrorFeedback
from ddlrun.ddl.interruption import InterruptionGuard
from ddlrun.ddl.late_host_monitor import can_wait, make_late_host_monitor
from ddlrun.ddl.nic_monitor import LARGEST_TRIAL, Comparison, can_size_blocks, make_monitor
from ddlrun.ddl.operation import Limits
from ddlrun.ddl.reduce_ops import find_reduce_op
from ddlrun.ddl.schedule_cache import Collective, ScheduleCache
from ddlrun.ddl.transport import message_errors
from ddlrun.ddl.wire_compression import WIRES, can_narrow, parse_wire
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm
    from ddlrun.ddl.algorithm_selection import AlgorithmSelector
    from ddlrun.ddl.autotune import Measure
    from ddlrun.ddl.block_chunks import BlockChunk
    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.flat import FlatArray
    from ddlrun.ddl.late_host_monitor import LateHostMonitor
    from ddlrun.ddl.mpi_collectives import SmallMessagePath
    from ddlrun.ddl.nic_monitor import NicMonitor
    from ddlrun.ddl.operation import Operation
    from ddlrun.ddl.reduce_ops import ReduceOp
    from ddlrun.errors import LostRankError


class HostReducer:
    """Reduces flat arrays over a grid. All ranks create it together, and `free` it before MPI ends.

    `usual_wire` is the wire of calls that name none.
    """

    def __init__(self, grid: Grid, selector: AlgorithmSelector, usual_wire: str) -> None:
        self.grid, self.options, self.tuning = grid, selector.options, selector.tuning
        self._selector, self._usual_wire = selector, usual_wire
        # In host order: in ddl order a flat collective of the MPI library is several times slower.
        self.comm = selector.comm
        self.schedules = ScheduleCache(grid, selector.options.mode, selector.layout)
        self._engine, self._feedback = Engine(grid.base.make_transport(), grid.rank), ErrorFeedback()
        self.guard = InterruptionGuard(str(self), self._abandon if grid.size > 1 else None)
        self.small_messages = self._make_small_message_path()
        self._nic_monitor = make_monitor(grid.base, selector.monitored, selector.tuning.measure)
        self._late_host_monitor = make_late_host_monitor(grid, selector.monitored, selector.tuning.measure)

    def free(self) -> None:
        """Complete what is in progress and free the engine's communicator."""
        self._engine.free()

    def reduce(
        self, arrays: Sequence[FlatArray], op: str, axes: str = "", wire: str = "", *, blocking: bool = True
    ) -> Handle:
        """Begin to reduce arrays in place; if `blocking`, small ones may be reduced on return.

        `wire` is complete, as from `find_wire`.
        """
        self.compare(arrays, op, axes, wire)
        handle = Handle(self._engine, self.guard, f"{self}: all_reduce: {op} of {', '.join(map(str, arrays))}")
        alone = all(len(dimension.peers) == 1 for dimension in self.schedules.dimensions(axes))
        whole = not axes or set(axes) == set(self.grid.axes)
        for bucket in () if alone else make_buckets(arrays, self.tuning):
            reduce_op = find_reduce_op(bucket[0].dtype, op)
            elements = bucket[0].elements if len(bucket) == 1 else np.concatenate([array.elements for array in bucket])
            narrows = can_narrow(wire, reduce_op) and elements.nbytes > self.tuning.flat
            message = MessageClass(
                size=elements.nbytes,
                dtype=reduce_op.dtype,
                whole=whole,
                blocking=blocking,
                wire=wire if narrows else "",
                weighted=self._nic_monitor is None and self.schedules.layout is not None,
            )
            self.guard.begin_messages()
            algorithm = self._select(message, elements, reduce_op)
            if self._nic_monitor is not None and can_size_blocks(message):
                algorithm = self._size_blocks(self._nic_monitor, algorithm, elements, reduce_op)
            if self._late_host_monitor is not None and can_wait(message, algorithm):
                algorithm = self._take_late_host_last(self._late_host_monitor, algorithm, elements, reduce_op)
            if algorithm.method == "flat" and self.small_messages is not None and wire == self._usual_wire:
                self.small_messages.learn(elements, reduce_op)
            losses = None
            if narrows and wire.startswith("int8"):
                losses = self._feedback.add_to(elements, bucket, axes)
            try:
                operation = self._execute(algorithm, elements, reduce_op, axes, losses)
            except message_errors() as error:  # a message of another length that was here before its buffer
                raise handle.explain(error) from error
            if operation is None:
                unpack_bucket(bucket, elements)
            else:
                handle.add(operation, partial(unpack_bucket, bucket, elements))
        return handle

    def reduce_scatter(self, array: FlatArray, reduce_op: ReduceOp) -> None:
        """Reduce an array; the block of this learner gets the result."""
        self._transfer(array, reduce_op, "reduce_scatter", ReduceScatterChunk)

    def allgather(self, array: FlatArray) -> None:
        """Fill an array from the blocks of all learners, each of which has its own."""
        self._transfer(array, find_reduce_op(array.dtype, "sum"), "allgather", AllgatherChunk)

    def _transfer(self, array: FlatArray, reduce_op: ReduceOp, name: str, kind: type[BlockChunk]) -> None:
        elements = array.elements
        transfer = BlockTransfer(
            blocks=ArrayBlocks(elements, self.grid.size),
            own=elements[slice(*self.schedules.own_block(len(elements)))],
            schedule=partial(self.schedules.steps, Collective(name)),
            own_block=self.schedules.own_block,
        )
        self.guard.begin_messages()
        self._engine.wait(transfer.start(self._engine, kind, reduce_op, self.tuning))
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
            raise InputError(f"{self}: all_reduce: {mine} here, but {others[0]}; all reduce the same, in one order")

    def _abandon(self, error: LostRankError) -> None:
        """Give up what is in progress; over TCP, let the other ranks see that."""
        self._engine.is_interrupted = True
        self.grid.base.abandon(error)

    def __str__(self) -> str:
        return f"rank {self.grid.rank} of {self.grid.size}"

    def _make_small_message_path(self) -> SmallMessagePath | None:
        collectives = self.comm.collectives
        if collectives is None or self.options.mode not in FLAT_MODES or self.options.dbg_level:
            return None
        path: SmallMessagePath = collectives.SmallMessagePath(self.comm)
        return path

    def _select(self, message: MessageClass, elements: Any, reduce_op: ReduceOp) -> AllreduceAlgorithm:  # noqa: ANN401
        return self._selector.select(message, lambda: self._make_measure(np.ones_like(elements), reduce_op))

    def _execute(
        self,
        algorithm: AllreduceAlgorithm,
        elements: Any,  # noqa: ANN401
        reduce_op: ReduceOp,
        axes: str,
        losses: Any = None,  # noqa: ANN401
    ) -> Operation | None:
        """Reduce elements in place; return the operation if it is in progress, None if it is complete."""
        if algorithm.method == "flat":
            self._reduce_flat(elements, reduce_op)
        elif algorithm.method == "native":
            self._reduce_natively(elements, reduce_op, axes)
        if algorithm.method != "chunks":
            return None
        longest = max(algorithm.chunk // WIRES.get(parse_wire(algorithm.wire).dtype, elements.itemsize), 1)
        collective = Collective("all_reduce", axes, algorithm.algorithms, algorithm.wire)
        schedule, host = partial(self.schedules.steps, collective), None
        part = host_part(elements.nbytes, longest * elements.itemsize, self._selector.host_ranks)
        narrows = self.grid.axes[0] in parse_wire(algorithm.wire).axes  # whose blocks and roundings are those of chunks
        if part and not (axes or narrows or algorithm.algorithms in {WEIGHTED, LATE}):
            schedule = partial(self.schedules.steps, collective._replace(name="between_hosts"))
            host = self.schedules.host_parts(collective, part // elements.itemsize)
        limits = Limits(longest, algorithm.depth, algorithm.connections)
        return self._engine.start(elements, reduce_op, schedule, limits, losses, host)

    def _size_blocks(
        self,
        monitor: NicMonitor,
        algorithm: AllreduceAlgorithm,
        elements: Any,  # noqa: ANN401
        reduce_op: ReduceOp,
    ) -> AllreduceAlgorithm:
        """Return the algorithm, with blocks sized by the rates of the NICs while that is faster."""
        sized = size_blocks(algorithm, self.tuning, elements.nbytes)
        if monitor.is_due(elements.nbytes):
            trial = np.ones_like(elements[: LARGEST_TRIAL // elements.itemsize])
            comparison = Comparison(algorithm, sized, self._make_measure(trial, reduce_op))
            monitor.update(self._engine, self.schedules, comparison)
        return algorithm if self.schedules.layout is None else sized

    def _take_late_host_last(
        self,
        monitor: LateHostMonitor,
        algorithm: AllreduceAlgorithm,
        elements: Any,  # noqa: ANN401
        reduce_op: ReduceOp,
    ) -> AllreduceAlgorithm:
        """Return the algorithm, or the one that takes the late host last while there is one and that is faster."""
        waits = wait_for_late_host(elements.nbytes)
        if monitor.is_due(self._engine):
            self._engine.drain()
            trial = np.ones_like(elements[: LARGEST_TRIAL // elements.itemsize])
            share = len(trial) / len(elements)
            monitor.update(
                self.schedules,
                lambda delay: Comparison(algorithm, waits, self._make_measure(trial, reduce_op, share * delay)),
            )
        return algorithm if self.schedules.late_host is None else waits

    def _make_measure(self, elements: Any, reduce_op: ReduceOp, delay: float = 0) -> Measure:  # noqa: ANN401
        """Return a function that reduces elements by an algorithm, and returns the slowest rank's seconds.

        This rank begins `delay` seconds late.
        """
        comm, engine = self.comm, self._engine
        engine.drain()

        def measure(algorithm: AllreduceAlgorithm) -> float:
            comm.Barrier()
            start = time.perf_counter()
            time.sleep(delay)
            operation = self._execute(algorithm, elements, reduce_op, "")
            if operation is not None:
                engine.wait(operation)
            seconds = np.array([time.perf_counter() - start])
            comm.take_maxima(seconds)
            return float(seconds[0])

        return measure

    def _reduce_flat(self, elements: Any, reduce_op: ReduceOp) -> None:  # noqa: ANN401
        if self.comm.collectives is not None:
            self.comm.collectives.flat_allreduce(self.comm, elements, reduce_op)

    def _reduce_natively(self, elements: Any, reduce_op: ReduceOp, axes: str) -> None:  # noqa: ANN401
        comms = [self.grid.members(self.grid.axes[i]) for i in self.grid.places(axes or self.grid.axes)]
        if self.comm.collectives is not None:
            several = [comm for comm in comms if comm.size > 1]
            self.comm.collectives.allreduce_by_dimension(several, elements, reduce_op)
