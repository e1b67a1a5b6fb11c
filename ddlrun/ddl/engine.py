"""The pipelined allreduce: chunks that each walk through the steps of their schedule, all in one loop.

While one chunk crosses racks the next is reduced inside the host: there is no order between chunks but that each
begins after the one before, so the time nears the busiest link's share instead of the sum over dimensions.
All learners must start the same operations in the same order.
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

from ddlrun.ddl.partition import spans
from ddlrun.ddl.wire_compression import FORMATS, Converter

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.traffic_meter import TrafficMeter
    from ddlrun.ddl.reduce_ops import ReduceOp
    from ddlrun.ddl.schedule import ScheduleStep

    Array = NDArray[Any]
    Schedule = Callable[[int, str], tuple[ScheduleStep, ...]]

# Seconds: how long to look for messages without a rest; the least and longest rest then, a tenth of the wait so far.
SPIN, SHORT, LONG = 100e-6, 50e-6, 500e-6
# Seconds without a message after which a learner says so.
PATIENCE = 60.0
# Bytes of a message; MPI counts to 2^31 - 1.
LONGEST = 1 << 30
TAGS = 32767  # what every MPI has; chunks in flight are far fewer


class Operation:
    """One operation under way on one flat array; done when its last chunk is."""

    __slots__ = ("array", "combine", "depth", "itemsize", "left", "memory")

    def __init__(self, array: Array, kind: ReduceOp, chunks: int, depth: int) -> None:
        self.array, self.combine, self.left, self.depth = array, kind.combine, chunks, depth
        # numpy has no byte view of an empty array; nothing asks for one.
        self.memory, self.itemsize = array.data.cast("B") if chunks else memoryview(b""), array.itemsize


class _Chunk:
    """A part of an array on its way: the step it is at, and how many of that step's messages are open."""

    __slots__ = ("at", "open", "parts", "scratch", "start", "steps", "tag", "work")

    def __init__(self, work: Operation, steps: tuple[ScheduleStep, ...], start: int, tag: int) -> None:
        self.work, self.steps, self.start, self.tag = work, steps, start, tag
        self.at = self.open = 0
        self.scratch: bytearray | None = None
        self.parts: list[tuple[int, int, Array]] = []


class Engine:
    """Carries chunks over point-to-point messages of `comm`, which must be used for nothing else."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._waiting: deque[_Chunk] = deque()
        self._requests: list[MPI.Request] = []
        self._owners: list[_Chunk] = []
        self._scratch: list[bytearray] = []
        self._converters = {dtype: Converter(dtype) for dtype in FORMATS}
        self._begun = self._in_flight = 0
        self.meter: TrafficMeter | None = None  # set while nothing is under way
        atexit.register(self._leave)

    def start(self, array: Array, kind: ReduceOp, schedule: Schedule, longest: int, depth: int = 1) -> Operation:
        """Begin an operation in place on `array`, in chunks of at most `longest` elements, `depth` of them at once.

        `schedule(count, average)` gives the steps for a chunk of `count` elements.
        """
        parts = spans(len(array), longest) if len(array) else []
        work = Operation(array, kind, len(parts), depth)
        for low, high in parts:
            self._waiting.append(_Chunk(work, schedule(high - low, kind.average), low, self._begun % TAGS))
            self._begun += 1
        self._fill()
        return work

    def wait(self, work: Operation) -> None:
        """Return when `work` is done; whatever else is under way goes on meanwhile."""
        while work.left:
            self._settle(self._ready())

    def test(self, work: Operation) -> bool:
        """Move on what is ready; say whether `work` is done."""
        while work.left and (ready := MPI.Request.Testsome(self._requests)):
            self._settle(ready)
        return not work.left

    def drain(self) -> None:
        """Return when nothing is under way."""
        while self._requests:
            self._settle(self._ready())

    def free(self) -> None:
        """Finish what is under way, as all must who free together, and free the communicator."""
        self.drain()
        atexit.unregister(self._leave)
        self._comm.Free()

    def _leave(self) -> None:
        """Keep what messages still come to: MPI ends after Python has freed all that it can."""
        if not self._requests:
            return
        sys.stderr.write(
            f"ddlrun.ddl: rank {self._comm.rank} ends with reductions under way: wait for every handle, on all ranks\n"
        )
        for chunk in self._owners:
            for held in (chunk.work.array, chunk.scratch, *(part for *_, part in chunk.parts)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

    def _ready(self) -> list[int] | None:
        """Wait for messages; sleep between looks when none has come for a while: others may need the core."""
        ready = MPI.Request.Testsome(self._requests)
        if ready:
            return ready
        began = perf_counter()
        told = False
        while not (ready := MPI.Request.Testsome(self._requests)):
            waited = perf_counter() - began
            if waited > SPIN:
                sleep(min(max(waited / 10, SHORT), LONG))
            if waited > PATIENCE and not told:
                told = True
                self._tell()
        return ready

    def _tell(self) -> None:
        """Say who is waited for: a learner that makes a call less than the others waits where MPI ends."""
        peers = {message.peer for chunk in self._owners for message in chunk.steps[chunk.at].receives}
        who = ", ".join(map(str, sorted(peers))) or "others"
        sys.stderr.write(
            f"ddlrun.ddl: rank {self._comm.rank} has waited {PATIENCE:.0f} s for a message of rank {who}; do all ranks "
            "make the same calls?\n"
        )

    def _settle(self, ready: list[int] | None) -> None:
        requests, owners = self._requests, self._owners
        stepped = []
        for index in sorted(ready or (), reverse=True):
            chunk, last = owners[index], len(owners) - 1
            requests[index], owners[index] = requests[last], owners[last]
            del requests[last], owners[last]
            chunk.open -= 1
            if not chunk.open:
                stepped.append(chunk)
                if self.meter is not None:
                    self.meter.end(chunk.steps[chunk.at])
        with np.errstate(all="ignore"):  # inf - inf is the sum; an error here would leave the others waiting
            for chunk in stepped:
                self._finish_step(chunk)
                self._next_step(chunk)
        self._fill()

    def _fill(self) -> None:
        """Let chunks begin, in order, while fewer are under way than the next one's depth."""
        while self._waiting and self._in_flight < self._waiting[0].work.depth:
            self._in_flight += 1
            self._next_step(self._waiting.popleft())

    def _next_step(self, chunk: _Chunk) -> None:
        """Post the messages of the chunk's step, and of those after it as long as there is nothing to wait for."""
        while chunk.at < len(chunk.steps):
            self._post(chunk, chunk.steps[chunk.at])
            if chunk.open:
                if self.meter is not None:
                    self.meter.begin(chunk.steps[chunk.at], chunk.work.itemsize)
                return
            self._finish_step(chunk)
        if chunk.scratch is not None:
            self._scratch.append(chunk.scratch)
        chunk.work.left -= 1
        self._in_flight -= 1

    def _post(self, chunk: _Chunk, step: ScheduleStep) -> None:
        if step.wire:
            self._post_narrow(chunk, step)
            return
        comm, tag, work = self._comm, chunk.tag, chunk.work
        memory, size, start = work.memory, work.itemsize, chunk.start
        filled = 0
        for peer, low, high in step.receives:
            if step.combine:
                target, filled = self._room(chunk, step, filled, (high - low) * size)
                chunk.parts.append((low, high, np.frombuffer(target, work.array.dtype)))
            else:
                target = memory[(start + low) * size : (start + high) * size]
            for at in range(0, len(target), LONGEST):
                self._add(chunk, comm.Irecv([target[at : at + LONGEST], MPI.BYTE], peer, tag))
        for peer, low, high in step.sends:
            source = memory[(start + low) * size : (start + high) * size]
            for at in range(0, len(source), LONGEST):
                self._add(chunk, comm.Isend([source[at : at + LONGEST], MPI.BYTE], peer, tag))

    def _post_narrow(self, chunk: _Chunk, step: ScheduleStep) -> None:
        """Post messages of 16 bits an element, which come to scratch and go from there."""
        converter, start = self._converters[step.wire], chunk.start
        blocks = {message[1:]: message.high - message.low for message in step.sends}  # one may go to several
        count = sum(message.high - message.low for message in step.receives) + sum(blocks.values())
        chunk.scratch = self._borrow(chunk.scratch, 2 * count)
        room, at = np.frombuffer(chunk.scratch, converter.memory, count), 0
        for peer, low, high in step.receives:
            part, at = room[at : at + high - low], at + high - low
            chunk.parts.append((low, high, part))
            self._add(chunk, self._comm.Irecv([part.data.cast("B"), MPI.BYTE], peer, chunk.tag))
        packed = {}
        for (low, high), size in blocks.items():
            packed[low, high], at = room[at : at + size], at + size
            # What an allgather carries was rounded by its owner.
            mine = chunk.work.array[start + low : start + high]
            converter.pack(mine, packed[low, high], settled=not step.combine)
        for peer, low, high in step.sends:
            self._add(chunk, self._comm.Isend([packed[low, high].data.cast("B"), MPI.BYTE], peer, chunk.tag))

    def _add(self, chunk: _Chunk, request: MPI.Request) -> None:
        self._requests.append(request)
        self._owners.append(chunk)
        chunk.open += 1

    def _room(self, chunk: _Chunk, step: ScheduleStep, filled: int, wanted: int) -> tuple[memoryview, int]:
        """Return room for a message that is to be combined; scratch goes from chunk to chunk."""
        if not filled:
            whole = sum(m.high - m.low for m in step.receives) * chunk.work.itemsize
            chunk.scratch = self._borrow(chunk.scratch, whole)
        return memoryview(chunk.scratch)[filled : filled + wanted], filled + wanted  # type: ignore[arg-type]

    def _borrow(self, held: bytearray | None, wanted: int) -> bytearray:
        if held is None and self._scratch:
            held = self._scratch.pop()
        return held if held is not None and len(held) >= wanted else bytearray(wanted)

    def _finish_step(self, chunk: _Chunk) -> None:
        """Combine what came in, in the schedule's order and not in that of arrival: all runs give the same bits."""
        step, work, start = chunk.steps[chunk.at], chunk.work, chunk.start
        last = len(chunk.parts) - 1
        for number, (low, high, part) in enumerate(chunk.parts):
            divisor = step.divisor if number == last else 1
            mine = work.array[start + low : start + high]
            if not step.wire:
                work.combine(mine, part, divisor)
            elif step.combine:
                self._converters[step.wire].combine(part, mine, work.combine, divisor)
            else:
                self._converters[step.wire].unpack(part, mine)
            if step.settled and number == last:
                self._converters[step.settled].settle(mine)
        chunk.parts = []
        chunk.at += 1
