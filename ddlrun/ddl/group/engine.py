"""The pipelined allreduce: chunks that advance through their schedules independently, in one loop.

While one chunk crosses racks the next is reduced inside the host. The only order between chunks is that each begins
after the one before. So the time approaches that of the busiest link instead of the sum over the dimensions. All
learners must start the same operations in the same order.

Steps that wait for a late learner form a chunk of their own, in a second queue: they take no place of the others, which
never wait for them. Steps inside a host may take longer parts of the array than those between hosts, in further queues.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.group.operation import QUEUES, ChunkQueue, Operation, ScratchPool, make_chunks, make_parts
from ddlrun.ddl.schedules.partition import ramped_ranges
from ddlrun.ddl.selection.int8_compression import Int8Converter, add_loss
from ddlrun.ddl.selection.wire_compression import FORMATS, WIRES, Converter
from ddlrun.ddl.transports.communicators import LANE, PATIENCE, report_wait
from ddlrun.errors import LostRankError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ddlrun.ddl.group.operation import Chunk, HostParts, Limits, Schedule
    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.monitor.meters import TrafficMeter
    from ddlrun.ddl.schedules.schedule import ScheduleStep
    from ddlrun.ddl.transports.communicators import Transport

    Array = NDArray[Any]

TAGS = 32767  # every MPI has this many, and far fewer chunks are in flight


class Engine:
    """Carries chunks over point-to-point messages of `transport`, which must be used for nothing else."""

    def __init__(self, transport: Transport[Chunk], rank: int) -> None:
        self._transport, self._rank = transport, rank
        self._queues = [ChunkQueue() for _ in QUEUES]
        self._scratch = ScratchPool()
        self._converters: dict[str, Converter | Int8Converter] = {dtype: Converter(dtype) for dtype in FORMATS}
        self._converters["int8"] = Int8Converter()
        self._begun = 0
        self.idle_since = time.perf_counter()  # when the last operation was complete
        self.is_interrupted = False  # by an exception: what is in progress will never be complete
        self.meter: TrafficMeter | None = None  # set only while nothing is in flight
        atexit.register(self._keep_memory)

    def start(
        self,
        array: Array,
        reduce_op: ReduceOp,
        schedule: Schedule,
        limits: Limits,
        losses: Array | None = None,
        host: HostParts | None = None,
    ) -> Operation:
        """Begin an operation in place on a flat array.

        Args:
            array: Contiguous, one-dimensional. It must not be read or written until the operation is complete.
            reduce_op: Combines received elements with the array.
            schedule: schedule(count, division) returns the steps for a chunk of `count` elements; `division` is that of
                the operator.
            limits: The sizes of chunks, and the numbers of those in flight and of connections.
            losses: An array like the first, to which what int8 loses is added.
            host: The steps among the ranks of this host if they exchange parts that are longer than chunks; the
                schedule then has the steps between hosts only.
        """
        ranges = ramped_ranges(len(array), limits.longest) if len(array) else []
        operation = Operation(array, reduce_op, len(ranges), limits, losses)
        made = (operation, schedule, ranges)
        chunks = make_chunks(*made) if host is None else make_parts(*made, host)
        operation.left = len(chunks)
        self.begin(chunks)
        return operation

    def begin(self, chunks: Iterable[Chunk]) -> None:
        """Begin chunks, in order, after those that were begun before."""
        for chunk in chunks:
            # The chunks take turns on the connections.
            chunk.tag = self._begun % TAGS + self._begun % chunk.operation.limits.connections * LANE
            self._queues[chunk.queue].waiting.append(chunk)
            self._begun += 1
        with np.errstate(all="ignore"):
            self._fill()

    def wait(self, operation: Operation) -> None:
        """Return when the operation is complete. Other operations in progress advance meanwhile."""
        with np.errstate(all="ignore"):
            while operation.left:
                self.settle(self._next())

    def test(self, operation: Operation) -> bool:
        """Handle the messages that are complete; return whether the operation is."""
        with np.errstate(all="ignore"):
            while operation.left and (complete := self._wait_some(0)):
                self.settle(complete)
        return not operation.left

    def settle(self, complete: Iterable[Chunk]) -> None:
        """Advance the chunks whose step is complete.

        The caller ignores numpy's warnings: a script may turn them into errors, which would leave the peers waiting.
        """
        if self.meter is not None:
            for chunk in complete:
                self.meter.end(chunk.steps[chunk.at])
        for chunk in complete:
            self._finish_step(chunk)
            self._advance(chunk)
        if any(chunk.is_complete for chunk in complete):
            self._fill()

    def drain(self) -> None:
        """Return when nothing is in progress."""
        with np.errstate(all="ignore"):
            while not self.is_idle:
                self.settle(self._next())

    def give_up(self) -> None:
        """Forget what is in progress, which will not be complete."""
        for queue in self._queues:
            queue.in_flight.clear()
            queue.waiting.clear()

    def free(self) -> None:
        """Complete what is in progress and close the transport. All ranks call it together."""
        self.drain()
        atexit.unregister(self._keep_memory)
        self._transport.close()

    @property
    def is_idle(self) -> bool:
        """True while nothing is in progress."""
        return not any(queue.in_flight for queue in self._queues)

    @property
    def _in_flight(self) -> list[Chunk]:
        return [chunk for queue in self._queues for chunk in queue.in_flight]

    def _keep_memory(self) -> None:
        """Keep the memory of open messages at exit: MPI ends only after Python has freed what it can."""
        if self.is_idle:
            return
        if not self.is_interrupted:
            sys.stderr.write(
                f"ddlrun.ddl: rank {self._rank} ends with reductions under way: wait for every handle, on all ranks\n"
            )
        for chunk in self._in_flight:
            for buffer in (chunk.array, chunk.scratch, *(part for *_, part in chunk.parts)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))

    def _next(self) -> list[Chunk]:
        """Wait until the messages of a chunk's step are complete; return these chunks."""
        complete = self._wait_some(PATIENCE)
        if not complete:
            report_wait(self._rank, {item.peer for chunk in self._in_flight for item in chunk.steps[chunk.at].receives})
            while not (complete := self._wait_some(PATIENCE)):
                pass
        return complete

    def _wait_some(self, seconds: float) -> list[Chunk]:
        """Wait for messages; give up everything in progress if a rank is lost."""
        try:
            return self._transport.wait_some(seconds)
        except LostRankError:
            self.give_up()
            raise

    def _fill(self) -> None:
        """Begin the chunks of each queue that can begin."""
        for queue in self._queues:
            while queue.waiting and (chunk := queue.begin_next()) is not None:
                chunk.begin(self._scratch)
                self._advance(chunk)

    def _advance(self, chunk: Chunk) -> None:
        """Post the messages of the chunk's step, and go on to the next step while there is nothing to wait for."""
        while chunk.at < len(chunk.steps):
            step = chunk.steps[chunk.at]
            self._post(chunk, step)
            meter = self.meter if step.sends or step.receives else None
            if meter is not None:
                meter.begin(step, chunk.operation.itemsize)
            if chunk.open:
                return
            if meter is not None:
                meter.end(step)
            self._finish_step(chunk)
        if chunk.scratch is not None:
            self._scratch.give_back(chunk.scratch)
        chunk.end(self._scratch)
        self._queues[chunk.queue].in_flight.remove(chunk)
        chunk.operation.left -= 1
        if not chunk.operation.left and self.is_idle:
            self.idle_since = time.perf_counter()

    def _post(self, chunk: Chunk, step: ScheduleStep) -> None:
        if step.wire:
            self._post_narrow(chunk, step)
            return
        transport, tag, operation = self._transport, chunk.tag, chunk.operation
        memory, size, start, filled = chunk.memory, operation.itemsize, chunk.start, 0
        for peer, low, high in step.receives:
            if step.combine:
                target, filled = self._allot(chunk, step, filled, (high - low) * size)
                chunk.parts.append((low, high, np.frombuffer(target, operation.array.dtype)))
            else:
                target = memory[(start + low) * size : (start + high) * size]
            transport.post_receive(target, peer, tag, chunk)
        for peer, low, high in step.sends:
            transport.post_send(memory[(start + low) * size : (start + high) * size], peer, tag, chunk)

    def _post_narrow(self, chunk: Chunk, step: ScheduleStep) -> None:
        """Post messages of fewer bits per element, which are received in scratch memory and sent from there."""
        converter, start = self._converters[step.wire], chunk.start
        # A block may have several peers.
        blocks = {message[1:]: converter.length(message.high - message.low) for message in step.sends}
        count = sum(converter.length(message.high - message.low) for message in step.receives) + sum(blocks.values())
        chunk.scratch = self._scratch.borrow(chunk.scratch, count * WIRES[step.wire])
        room, at = np.frombuffer(chunk.scratch, converter.memory, count), 0
        for peer, low, high in step.receives:
            end = at + converter.length(high - low)
            part, at = room[at:end], end
            chunk.parts.append((low, high, part))
            self._transport.post_receive(part.data.cast("B"), peer, chunk.tag, chunk)
        packed = {}
        for (low, high), size in blocks.items():
            packed[low, high], at = room[at : at + size], at + size
            # The values of an allgather were rounded by their owner.
            mine = chunk.array[start + low : start + high]
            converter.pack(mine, packed[low, high], settled=not step.combine)
            if step.combine and chunk.operation.losses is not None:
                rounded = np.empty_like(mine)
                converter.unpack(packed[low, high], rounded)
                add_loss(chunk.operation.losses[start + low : start + high], mine, rounded)
        for peer, low, high in step.sends:
            self._transport.post_send(packed[low, high].data.cast("B"), peer, chunk.tag, chunk)

    def _allot(self, chunk: Chunk, step: ScheduleStep, filled: int, nbytes: int) -> tuple[memoryview, int]:
        """Return scratch memory for a received message, and the bytes of scratch that are then in use."""
        if not filled:
            whole = sum(message.high - message.low for message in step.receives) * chunk.operation.itemsize
            chunk.scratch = self._scratch.borrow(chunk.scratch, whole)
        return memoryview(chunk.scratch)[filled : filled + nbytes], filled + nbytes  # type: ignore[arg-type]

    def _finish_step(self, chunk: Chunk) -> None:
        """Combine received parts in the schedule's order, not in that of arrival: every run gives the same bits."""
        step, operation, start = chunk.steps[chunk.at], chunk.operation, chunk.start
        first_closing = len(chunk.parts) - step.closing
        for number, (low, high, part) in enumerate(chunk.parts):
            divisor = step.divisor if number >= first_closing else 1
            mine = chunk.array[start + low : start + high]
            if step.theirs_first:
                operation.combine(part, mine, divisor)
                mine[:] = part
            elif not step.wire:
                operation.combine(mine, part, divisor)
            elif step.combine:
                self._converters[step.wire].combine(part, mine, operation.combine, divisor)
            else:
                self._converters[step.wire].unpack(part, mine)
            if step.settled and number >= first_closing:
                self._settle_sum(chunk, (start + low, start + high), divisor)
        chunk.parts = []
        chunk.at += 1

    def _settle_sum(self, chunk: Chunk, bounds: tuple[int, int], divisor: int) -> None:
        """Round a sum that is complete, or an average, to values that are forwarded unchanged."""
        losses, mine = chunk.operation.losses, chunk.array[slice(*bounds)]
        exact = mine if losses is None else mine.copy()
        self._converters[chunk.steps[chunk.at].settled].settle(mine)
        if losses is not None:
            add_loss(losses[slice(*bounds)], exact, mine, divisor)
