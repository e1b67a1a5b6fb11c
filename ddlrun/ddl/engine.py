"""The pipelined allreduce over MPI: chunks that advance through their schedules independently, in one loop.

While one chunk crosses racks the next is reduced inside the host. The only order between chunks is that each begins
after the one before. So the time approaches that of the busiest link instead of the sum over the dimensions. All
learners must start the same operations in the same order.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections import deque
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.operation import Chunk, Operation, ScratchPool
from ddlrun.ddl.partition import chunk_ranges
from ddlrun.ddl.wire_compression import FORMATS, Converter

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.traffic_meter import TrafficMeter
    from ddlrun.ddl.reduce_ops import ReduceOp
    from ddlrun.ddl.schedule import ScheduleStep

    Array = NDArray[Any]
    Schedule = Callable[[int, str], tuple[ScheduleStep, ...]]

# Seconds: how long to poll without a pause, then the shortest and longest pause. A pause is a tenth of the wait so far.
SPIN, SHORTEST_PAUSE, LONGEST_PAUSE = 100e-6, 50e-6, 500e-6
# Seconds without a message after which a learner reports the ranks that it waits for.
PATIENCE = 60.0
# Bytes of a message: MPI counts up to 2^31 - 1.
MAX_MESSAGE = 1 << 30
TAGS = 32767  # every MPI has this many, and far fewer chunks are in flight


class Engine:
    """Carries chunks over point-to-point messages of `comm`, which must be used for nothing else."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._waiting: deque[Chunk] = deque()
        # The open messages, and the chunk of each.
        self._requests: list[MPI.Request] = []
        self._owners: list[Chunk] = []
        self._scratch = ScratchPool()
        self._converters = {dtype: Converter(dtype) for dtype in FORMATS}
        self._begun = self._in_flight = 0
        self.meter: TrafficMeter | None = None  # set only while nothing is in flight
        atexit.register(self._keep_memory)

    def start(self, array: Array, reduce_op: ReduceOp, schedule: Schedule, longest: int, depth: int = 1) -> Operation:
        """Begin an operation in place on a flat array.

        Args:
            array: Contiguous, one-dimensional. It must not be read or written until the operation is complete.
            reduce_op: Combines received elements with the array.
            schedule: schedule(count, division) returns the steps for a chunk of `count` elements; `division` is that of
                the operator.
            longest: Elements of a chunk, at most.
            depth: Chunks in flight, at most.
        """
        ranges = chunk_ranges(len(array), longest) if len(array) else []
        operation = Operation(array, reduce_op, len(ranges), depth)
        for low, high in ranges:
            steps = schedule(high - low, reduce_op.division)
            self._waiting.append(Chunk(operation, steps, low, self._begun % TAGS))
            self._begun += 1
        self._fill()
        return operation

    def wait(self, operation: Operation) -> None:
        """Return when the operation is complete. Other operations in progress advance meanwhile."""
        while operation.left:
            self._settle(self._ready())

    def test(self, operation: Operation) -> bool:
        """Handle the messages that are complete; return whether the operation is."""
        while operation.left and (ready := MPI.Request.Testsome(self._requests)):
            self._settle(ready)
        return not operation.left

    def drain(self) -> None:
        """Return when nothing is in progress."""
        while self._requests:
            self._settle(self._ready())

    def free(self) -> None:
        """Complete what is in progress and free the communicator. All ranks call it together."""
        self.drain()
        atexit.unregister(self._keep_memory)
        self._comm.Free()

    def _keep_memory(self) -> None:
        """Keep the memory of open messages at exit: MPI ends only after Python has freed what it can."""
        if not self._requests:
            return
        sys.stderr.write(
            f"ddlrun.ddl: rank {self._comm.rank} ends with reductions under way: wait for every handle, on all ranks\n"
        )
        for chunk in self._owners:
            for buffer in (chunk.operation.array, chunk.scratch, *(part for *_, part in chunk.parts)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))

    def _ready(self) -> list[int] | None:
        """Wait until messages are complete and return their indices. Pauses leave the core to other processes."""
        ready = MPI.Request.Testsome(self._requests)
        if ready:
            return ready
        began = perf_counter()
        reported = False
        while not (ready := MPI.Request.Testsome(self._requests)):
            waited = perf_counter() - began
            if waited > SPIN:
                sleep(min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))
            if waited > PATIENCE and not reported:
                reported = True
                self._report_wait()
        return ready

    def _report_wait(self) -> None:
        """Report the ranks whose messages are missing.

        One of them may have made a call less than this learner, and wait in MPI's finalization.
        """
        peers = {message.peer for chunk in self._owners for message in chunk.steps[chunk.at].receives}
        ranks = ", ".join(map(str, sorted(peers))) or "others"
        sys.stderr.write(
            f"ddlrun.ddl: rank {self._comm.rank} has waited {PATIENCE:.0f} s for a message of rank {ranks}; do all "
            "ranks make the same calls?\n"
        )

    def _settle(self, ready: list[int] | None) -> None:
        """Remove complete messages, and advance the chunks whose step is complete."""
        requests, owners = self._requests, self._owners
        complete = []
        for index in sorted(ready or (), reverse=True):
            chunk, last = owners[index], len(owners) - 1
            requests[index], owners[index] = requests[last], owners[last]
            del requests[last], owners[last]
            chunk.open -= 1
            if not chunk.open:
                complete.append(chunk)
                if self.meter is not None:
                    self.meter.end(chunk.steps[chunk.at])
        with np.errstate(all="ignore"):  # inf - inf is a result like others; an exception would leave the peers waiting
            for chunk in complete:
                self._finish_step(chunk)
                self._advance(chunk)
        self._fill()

    def _fill(self) -> None:
        """Begin waiting chunks, in order, while fewer are in flight than the next one's depth."""
        while self._waiting and self._in_flight < self._waiting[0].operation.depth:
            self._in_flight += 1
            self._advance(self._waiting.popleft())

    def _advance(self, chunk: Chunk) -> None:
        """Post the messages of the chunk's step, and go on to the next step while there is nothing to wait for."""
        while chunk.at < len(chunk.steps):
            self._post(chunk, chunk.steps[chunk.at])
            if chunk.open:
                if self.meter is not None:
                    self.meter.begin(chunk.steps[chunk.at], chunk.operation.itemsize)
                return
            self._finish_step(chunk)
        if chunk.scratch is not None:
            self._scratch.give_back(chunk.scratch)
        chunk.operation.left -= 1
        self._in_flight -= 1

    def _post(self, chunk: Chunk, step: ScheduleStep) -> None:
        if step.wire:
            self._post_narrow(chunk, step)
            return
        comm, tag, operation = self._comm, chunk.tag, chunk.operation
        memory, size, start = operation.memory, operation.itemsize, chunk.start
        filled = 0
        for peer, low, high in step.receives:
            if step.combine:
                target, filled = self._allot(chunk, step, filled, (high - low) * size)
                chunk.parts.append((low, high, np.frombuffer(target, operation.array.dtype)))
            else:
                target = memory[(start + low) * size : (start + high) * size]
            for at in range(0, len(target), MAX_MESSAGE):
                self._add(chunk, comm.Irecv([target[at : at + MAX_MESSAGE], MPI.BYTE], peer, tag))
        for peer, low, high in step.sends:
            source = memory[(start + low) * size : (start + high) * size]
            for at in range(0, len(source), MAX_MESSAGE):
                self._add(chunk, comm.Isend([source[at : at + MAX_MESSAGE], MPI.BYTE], peer, tag))

    def _post_narrow(self, chunk: Chunk, step: ScheduleStep) -> None:
        """Post messages of 16 bits per element, which are received in scratch memory and sent from there."""
        converter, start = self._converters[step.wire], chunk.start
        blocks = {message[1:]: message.high - message.low for message in step.sends}  # a block may have several peers
        count = sum(message.high - message.low for message in step.receives) + sum(blocks.values())
        chunk.scratch = self._scratch.borrow(chunk.scratch, 2 * count)
        room, at = np.frombuffer(chunk.scratch, converter.memory, count), 0
        for peer, low, high in step.receives:
            part, at = room[at : at + high - low], at + high - low
            chunk.parts.append((low, high, part))
            self._add(chunk, self._comm.Irecv([part.data.cast("B"), MPI.BYTE], peer, chunk.tag))
        packed = {}
        for (low, high), size in blocks.items():
            packed[low, high], at = room[at : at + size], at + size
            # The values of an allgather were rounded by their owner.
            mine = chunk.operation.array[start + low : start + high]
            converter.pack(mine, packed[low, high], settled=not step.combine)
        for peer, low, high in step.sends:
            self._add(chunk, self._comm.Isend([packed[low, high].data.cast("B"), MPI.BYTE], peer, chunk.tag))

    def _add(self, chunk: Chunk, request: MPI.Request) -> None:
        self._requests.append(request)
        self._owners.append(chunk)
        chunk.open += 1

    def _allot(self, chunk: Chunk, step: ScheduleStep, filled: int, nbytes: int) -> tuple[memoryview, int]:
        """Return scratch memory for a received message, and the bytes of scratch that are then in use."""
        if not filled:
            whole = sum(message.high - message.low for message in step.receives) * chunk.operation.itemsize
            chunk.scratch = self._scratch.borrow(chunk.scratch, whole)
        return memoryview(chunk.scratch)[filled : filled + nbytes], filled + nbytes  # type: ignore[arg-type]

    def _finish_step(self, chunk: Chunk) -> None:
        """Combine received parts in the schedule's order, not in that of arrival: every run gives the same bits."""
        step, operation, start = chunk.steps[chunk.at], chunk.operation, chunk.start
        last = len(chunk.parts) - 1
        for number, (low, high, part) in enumerate(chunk.parts):
            divisor = step.divisor if number == last else 1
            mine = operation.array[start + low : start + high]
            if not step.wire:
                operation.combine(mine, part, divisor)
            elif step.combine:
                self._converters[step.wire].combine(part, mine, operation.combine, divisor)
            else:
                self._converters[step.wire].unpack(part, mine)
            if step.settled and number == last:
                self._converters[step.settled].settle(mine)
        chunk.parts = []
        chunk.at += 1
