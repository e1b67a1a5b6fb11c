"""One learner: its grid, and the collectives over it."""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import MAY_GO_FLAT, MessageClass, algorithm
from ddlrun.ddl import schedule
from ddlrun.ddl.arrays import FlatArray, copied, flat, like, on_device
from ddlrun.ddl.fusion import buckets, deal_out
from ddlrun.ddl.handle import Handle
from ddlrun.ddl.reduce_ops import kind_of
from ddlrun.ddl.wire_compression import find_wire, parse_wire
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm
    from ddlrun.ddl.algorithm_selection import AlgorithmSelector
    from ddlrun.ddl.autotune import Measure
    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.engine import Engine, Operation
    from ddlrun.ddl.gpu_reduction import GpuReduction
    from ddlrun.ddl.launch_context import HostPosition
    from ddlrun.ddl.mpi_collectives import SmallMessagePath
    from ddlrun.ddl.reduce_ops import ReduceOp


# Bytes of a broadcast; MPI counts to 2^31 - 1.
LONGEST = 1 << 30


class Learner:
    """Runs collectives over a grid. Made by all ranks together; `free` it before MPI ends."""

    def __init__(self, grid: Grid, choice: AlgorithmSelector, host: HostPosition) -> None:
        self.grid, self.host, self._choice = grid, host, choice
        self.options, self.tuning = choice.options, choice.tuning
        options, comm = choice.options, choice.comm
        self._comm = comm  # in host order: a flat collective of the MPI library costs several times more in ddl order
        self._engine = self._make_engine()
        self._schedule = lru_cache(maxsize=256)(self._find_schedule)
        self._wire = lru_cache(maxsize=16)(self._find_wire)
        self._usual_wire = self._wire(None)
        self._quick = self._make_quick() if options.mode in MAY_GO_FLAT and not options.dbg_level else None
        self._dimensions = lru_cache(maxsize=16)(self._find_dimensions)
        self._devices: GpuReduction | None = None

    def free(self) -> None:
        """Free the communicators."""
        if self._devices is not None:
            self._devices.free()
        if self._engine is not None:
            self._engine.free()
        self.grid.free()

    @property
    def devices(self) -> GpuReduction:
        """Return what reduces tensors on accelerators, and has the process groups."""
        if self._devices is None:
            from ddlrun.ddl.gpu_reduction import GpuReduction  # noqa: PLC0415 - it needs torch

            self._devices = GpuReduction(self, self._comm)
        return self._devices

    def all_reduce(self, x: Any, op: str, axes: str, in_place: bool, wire: str | None = None) -> Any:  # noqa: ANN401, FBT001
        """Reduce one array over the learners that differ in `axes` ("": all)."""
        result = x if in_place else copied(x)
        quick = self._quick if wire is None and not axes else None
        if quick is not None and type(result) is np.ndarray and quick.reduce(result, op):
            return result if in_place else like(x, result)
        self._reduce([result], op, axes, wire).wait()
        return like(x, result)

    def all_reduce_n(self, arrays: Sequence[Any], op: str, *, axes: str, in_place: bool, wire: str | None) -> list[Any]:
        """Reduce arrays, small ones fused."""
        results = list(arrays) if in_place else [copied(x) for x in arrays]
        self._reduce(results, op, axes, wire).wait()
        return [like(x, result) for x, result in zip(arrays, results, strict=True)]

    def start(self, arrays: Sequence[Any], op: str, *, axes: str, wire: str | None) -> Handle:
        """Begin to reduce arrays in place."""
        return self._reduce(arrays, op, axes, wire, blocking=False)

    def reduce_scatter(self, x: Any, op: str) -> Any:  # noqa: ANN401
        """Reduce x, which is overwritten; return this learner's block of the result, flat."""
        one = self._flat(x, "reduce_scatter", op)
        kind, steps = kind_of(one.dtype, op), partial(self._steps, "reduce_scatter")
        self._whole(one, kind, steps)
        return x.reshape(-1)[slice(*self.piece(len(one.elements)))]

    def allgather_pieces(self, x: Any) -> Any:  # noqa: ANN401
        """Fill x from the block that each learner holds in its own: the inverse of reduce_scatter."""
        one = self._flat(x, "allgather_pieces", "sum")
        self._whole(one, kind_of(one.dtype, "sum"), partial(self._steps, "allgather"))
        return x

    def allgather(self, x: Any) -> Any:  # noqa: ANN401
        """Return all learners' x as numpy array of shape (size, *shape of x), in the order of ranks."""
        one = self._flat(copied(x), "allgather")
        rows = np.empty((self.grid.size, len(one.elements)), one.elements.dtype)
        rows[self.grid.index] = one.elements
        bytes_ = FlatArray(rows.reshape(-1).view(np.uint8), "uint8", rows.shape)
        self._whole(bytes_, kind_of("uint8", "sum"), partial(self._steps, "allgather"))
        places = [self.grid.index_of(rank) for rank in range(self.grid.size)]
        ordered = rows if places == sorted(places) else rows[places]
        return ordered.reshape(self.grid.size, *one.shape)

    def bcast(self, x: Any, root: int, *, in_place: bool) -> Any:  # noqa: ANN401
        """Return rank root's x."""
        if not 0 <= root < self.grid.size:
            raise InputError(f"{self}: bcast from root {root}: there are ranks 0 to {self.grid.size - 1}")
        result = x if in_place else copied(x)
        if self._comm is not None:
            one = self._flat(result, "bcast")
            memory, translated = one.elements.view(np.uint8), self.grid.host_index_of(root)
            for at in range(0, len(memory), LONGEST):
                self._comm.Bcast(memory[at : at + LONGEST], translated)
            one.give_back()
        return like(x, result)

    def barrier(self) -> None:
        """Wait until all learners are here."""
        if self._comm is not None:
            self._comm.Barrier()

    def piece(self, count: int) -> tuple[int, int]:
        """Return (low, high): the elements of a flat array of `count` that reduce_scatter leaves to this learner."""
        return schedule.own_block(self._dimensions(""), count)

    def __str__(self) -> str:
        return f"rank {self.grid.rank} of {self.grid.size}"

    def _make_engine(self) -> Engine | None:
        if self.grid.base is None:
            return None
        from ddlrun.ddl.engine import Engine  # noqa: PLC0415 - it needs MPI

        return Engine(self.grid.base.Dup())

    def _make_quick(self) -> SmallMessagePath | None:
        if self._comm is None:
            return None
        from ddlrun.ddl.mpi_collectives import SmallMessagePath  # noqa: PLC0415 - it needs MPI

        return SmallMessagePath(self._comm)

    def _reduce(self, arrays: Sequence[Any], op: str, axes: str, wire: str | None, *, blocking: bool = True) -> Handle:
        travels = self._wire(wire)
        if any(map(on_device, arrays)):
            return self.devices.reduce(arrays, op, axes, travels, blocking=blocking)
        flats = [self._flat(x, "all_reduce", op) for x in arrays]
        return self.reduce_flat(flats, op, axes, travels, blocking=blocking)

    def reduce_flat(
        self, flats: Sequence[FlatArray], op: str, axes: str = "", wire: str = "", *, blocking: bool = True
    ) -> Handle:
        """Begin to reduce flat arrays in place; small ones are done at once where `blocking` allows that."""
        self.compare(flats, op, axes, wire)
        handle = Handle(self._engine, f"{self}: all_reduce: {op} of {', '.join(map(str, flats))}")
        alone = all(len(dimension.peers) == 1 for dimension in self._dimensions(axes))
        for bucket in () if alone else buckets(flats, self.tuning):
            self._reduce_bucket(bucket, op, axes, wire, handle, may_be_flat=blocking)
        return handle

    def _reduce_bucket(
        self, bucket: list[FlatArray], op: str, axes: str, wire: str, handle: Handle, *, may_be_flat: bool
    ) -> None:
        kind = kind_of(bucket[0].dtype, op)
        elements = bucket[0].elements if len(bucket) == 1 else np.concatenate([one.elements for one in bucket])
        whole = not axes or set(axes) == set(self.grid.axes)
        case = MessageClass(elements.nbytes, kind.dtype, whole, may_be_flat)
        if kind.dtype == "float32" and case.size > self.tuning.flat:
            case = case._replace(wire=wire)
        way = self._choice.way(case, lambda: self._trial(np.ones_like(elements), kind))
        if way.how == "flat" and self._quick is not None and wire == self._usual_wire:
            self._quick.learn(elements, kind)
        work, done = self._go(way, elements, kind, axes), partial(deal_out, bucket, elements)
        handle.add(work, done) if work is not None else done()

    def _go(self, way: AllreduceAlgorithm, elements: Any, kind: ReduceOp, axes: str) -> Operation | None:  # noqa: ANN401
        """Reduce elements in place; return the work where it goes on."""
        if way.how == "flat":
            self._flat_way(elements, kind)
        elif way.how == "native":
            self._native_way(elements, kind, axes)
        if way.how != "chunks" or self._engine is None:
            return None
        longest = max(way.chunk // (2 if way.wire else elements.itemsize), 1)
        steps = partial(self._schedule, "all_reduce", axes, algorithms=way.algorithms, wire=way.wire)
        return self._engine.start(elements, kind, steps, longest, way.depth)

    def _trial(self, elements: Any, kind: ReduceOp) -> Measure:  # noqa: ANN401
        """Return what reduces elements in a way, and tells the slowest rank's seconds."""
        from mpi4py import MPI  # noqa: PLC0415 - it is loaded where there is something to try

        if self._engine is None or self._comm is None:
            raise RuntimeError("one learner has nothing to explore")
        comm, engine = self._comm, self._engine
        engine.drain()

        def measure(way: AllreduceAlgorithm) -> float:
            comm.Barrier()
            start = time.perf_counter()
            work = self._go(way, elements, kind, "")
            if work is not None:
                engine.wait(work)
            return float(comm.allreduce(time.perf_counter() - start, MPI.MAX))

        return measure

    def _flat_way(self, elements: Any, kind: ReduceOp) -> None:  # noqa: ANN401
        from ddlrun.ddl.mpi_collectives import flat_allreduce  # noqa: PLC0415 - it needs MPI

        if self._comm is not None:
            flat_allreduce(self._comm, elements, kind)

    def _native_way(self, elements: Any, kind: ReduceOp, axes: str) -> None:  # noqa: ANN401
        from ddlrun.ddl.mpi_collectives import allreduce_by_dimension  # noqa: PLC0415 - it needs MPI

        comms = [self.grid.communicator(self.grid.axes[i]) for i in self.grid.places(axes or self.grid.axes)]
        allreduce_by_dimension([comm for comm in comms if comm.size > 1], elements, kind)

    def _whole(
        self, one: FlatArray, kind: ReduceOp, steps: Callable[[int, str], tuple[schedule.ScheduleStep, ...]]
    ) -> None:
        """Run steps on a whole array at once: its blocks must lie where the caller expects them."""
        if self._engine is not None:
            self._engine.wait(self._engine.start(one.elements, kind, steps, max(len(one.elements), 1)))
        one.give_back()

    def _steps(self, what: str, count: int, average: str) -> tuple[schedule.ScheduleStep, ...]:
        return self._schedule(what, "", count, average)

    def _find_schedule(
        self, what: str, axes: str, count: int, average: str, algorithms: tuple[str, ...] = (), wire: str = ""
    ) -> tuple[schedule.ScheduleStep, ...]:
        dimensions = self._dimensions(axes, algorithms, wire)
        if average and schedule.wire_of(dimensions) == "float16":
            average = "each"  # or sums would leave its range
        reduces = schedule.reduce_scatter(dimensions, count, average=average)
        gathers = schedule.backwards(reduces)
        return tuple({"all_reduce": reduces + gathers, "reduce_scatter": reduces, "allgather": gathers}[what])

    def _find_dimensions(self, axes: str, algorithms: tuple[str, ...] = (), wire: str = "") -> list[schedule.Dimension]:
        found, travels = [], parse_wire(wire)
        for number in self.grid.places(axes or self.grid.axes):
            axis = self.grid.axes[number]
            peers, dtype = self.grid.peers(axis), travels.dtype if axis in travels.axes else ""
            name = algorithms[number] if algorithms else algorithm(self.options.mode, len(peers))
            found.append(schedule.Dimension(peers, self.grid.coords[number], name, dtype))
        return found

    def _find_wire(self, text: str | None) -> str:
        """Return what float32 travels as, with its dimensions; None: as the tuning says."""
        try:
            asked = self.tuning.wire if text is None else text
            return find_wire(asked, self.options.mode, self.grid.axes, self.host.leaving)
        except InputError as error:
            raise InputError(f"{self}: {error}") from error

    def _flat(self, x: object, what: str, op: str = "") -> FlatArray:
        try:
            one = flat(x)
            kind_of(one.dtype, op) if op else None
        except InputError as error:
            raise InputError(f"{self}: {what}: {error}") from error
        return one

    def compare(self, flats: Sequence[FlatArray], op: str, axes: str = "", wire: str = "") -> None:
        """With -dbg_level, see that all learners reduce the same: else messages of other lengths would meet."""
        if not self.options.dbg_level or self._comm is None:
            return
        over = "".join(self.grid.axes[i] for i in self.grid.places(axes or self.grid.axes))
        mine = f"{op} of {', '.join(map(str, flats))}{axes and f' over {over}'}{wire and f' by {wire}'}"
        all_ = self.grid.communicator(over).allgather((self.grid.rank, mine))
        others = [f"rank {rank} {told}" for rank, told in sorted(all_) if told != mine]
        if others:
            raise InputError(f"{self}: all_reduce: {mine} here, but {others[0]}; all reduce the same, in one order")
