"""A learner that follows its own iterations, for -dump_iter and -rebind_iter; without them nothing is measured."""

from __future__ import annotations

import atexit
import os
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from ddlrun.allreduce_algorithms import algorithm
from ddlrun.ddl.handle import Handle
from ddlrun.ddl.learner import Learner
from ddlrun.ddl.monitor.core_rebinding import CoreRebinding
from ddlrun.ddl.monitor.event_log import EventLog
from ddlrun.ddl.monitor.iteration_report import IterationReport
from ddlrun.ddl.monitor.iteration_timer import IterationTimer
from ddlrun.ddl.monitor.stats_exchange import ExchangeRounds
from ddlrun.ddl.monitor.traffic_meter import TimedCommunicator, TrafficMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mpi4py.MPI import Intracomm

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm
    from ddlrun.ddl.algorithm_selection import AlgorithmSelector
    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.engine import Operation
    from ddlrun.ddl.launch_context import HostPosition
    from ddlrun.ddl.monitor.iteration_timer import Iteration
    from ddlrun.ddl.reduce_ops import ReduceOp


class InstrumentedLearner(Learner):
    """A learner whose calls are timed; `environ` tells the run folder and the host's spare CPUs."""

    def __init__(self, grid: Grid, choice: AlgorithmSelector, host: HostPosition, environ: Mapping[str, str]) -> None:
        super().__init__(grid, choice, host)
        self._meter = _meter(grid, choice.options.mode)
        self._dump, self._rebind = _rounds(grid, choice, self._meter, environ)
        self._warm = self._sampled = False
        self._known = self._quick
        self._pace = IterationTimer()
        if self._dump is not None:
            atexit.register(self._dump.last)

    def free(self) -> None:
        """Free the communicators."""
        for rounds in (self._dump, self._rebind):
            if rounds is not None:
                rounds.free()
                atexit.unregister(rounds.last)
        super().free()

    def all_reduce(self, x: Any, op: str, axes: str, in_place: bool, wire: str | None = None) -> Any:  # noqa: ANN401, D102, FBT001
        with self._pace:
            result = super().all_reduce(x, op, axes, in_place, wire)
        self._ended(self._pace.waited(_bytes([x])))
        return result

    def all_reduce_n(  # noqa: D102
        self, arrays: Sequence[Any], op: str, *, axes: str, in_place: bool, wire: str | None
    ) -> list[Any]:
        with self._pace:
            results = super().all_reduce_n(arrays, op, axes=axes, in_place=in_place, wire=wire)
        self._ended(self._pace.waited(_bytes(arrays)))
        return results

    def start(self, arrays: Sequence[Any], op: str, *, axes: str, wire: str | None) -> Handle:  # noqa: D102
        with self._pace:
            handle = super().start(arrays, op, axes=axes, wire=wire)
        self._pace.begun(_bytes(arrays))
        return _TimedHandle(handle, self._pace, self._ended)

    def reduce_scatter(self, x: Any, op: str) -> Any:  # noqa: ANN401, D102
        with self._pace:
            result = super().reduce_scatter(x, op)
        self._ended(self._pace.waited(_bytes([x])))
        return result

    def allgather_pieces(self, x: Any) -> Any:  # noqa: ANN401, D102
        with self._pace:
            return super().allgather_pieces(x)

    def allgather(self, x: Any) -> Any:  # noqa: ANN401, D102
        with self._pace:
            return super().allgather(x)

    def bcast(self, x: Any, root: int, *, in_place: bool) -> Any:  # noqa: ANN401, D102
        with self._pace:
            return super().bcast(x, root, in_place=in_place)

    def barrier(self) -> None:  # noqa: D102
        with self._pace:
            super().barrier()

    def _ended(self, iteration: Iteration | None) -> None:
        """Count an iteration in, and choose whether the next one is looked at by dimension."""
        if iteration is None:
            return
        for rounds in (self._dump, self._rebind) if self._warm else ():
            if rounds is not None:
                rounds.add(iteration)
        self._warm = True  # the first iteration had the script's start in it
        self._sampled = self._dump is not None and self._dump.last_of_round
        if self._sampled:
            self._meter.reset()
        self._quick = None if self._sampled else self._known  # what is looked at goes through _go
        if self._engine is not None:
            self._engine.meter = self._meter if self._sampled else None
        self._pace.skip()

    def _go(self, way: AllreduceAlgorithm, elements: Any, kind: ReduceOp, axes: str) -> Operation | None:  # noqa: ANN401
        start = perf_counter()
        work = super()._go(way, elements, kind, axes)
        if self._sampled and way.how == "flat":
            self._meter.add(-1, elements.nbytes, start, "MPI_Allreduce")
        elif self._sampled and way.algorithms:
            self._meter.names[: len(way.algorithms)] = way.algorithms
        return work

    def _native_way(self, elements: Any, kind: ReduceOp, axes: str) -> None:  # noqa: ANN401
        if not self._sampled:
            super()._native_way(elements, kind, axes)
            return
        from ddlrun.ddl.mpi_collectives import allreduce_by_dimension  # noqa: PLC0415 - it needs MPI

        places = self.grid.places(axes or self.grid.axes)
        timed = [TimedCommunicator(self.grid.communicator(self.grid.axes[i]), self._meter, i) for i in places]
        allreduce_by_dimension(cast("list[Intracomm]", [comm for comm in timed if comm.size > 1]), elements, kind)


class _TimedHandle(Handle):
    """A handle whose waiting is timed."""

    def __init__(self, handle: Handle, pace: IterationTimer, ended: Callable[[Iteration | None], None]) -> None:
        self._handle, self._pace, self._ended = handle, pace, ended
        self._counted = False

    def wait(self) -> None:
        with self._pace:
            self._handle.wait()
        self._count()
        self._ended(self._pace.waited())

    def test(self) -> bool:
        with self._pace:
            done = self._handle.test()
        if done:
            self._count()
        return done

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self._pace.done()


def _meter(grid: Grid, mode: str) -> TrafficMeter:
    sizes = grid.topology.dims
    axis_of = {peer: number for number, axis in enumerate(grid.axes) for peer in grid.peers(axis) if peer != grid.rank}
    return TrafficMeter(axis_of, [algorithm(mode, size) for size in sizes])


def _rounds(
    grid: Grid, choice: AlgorithmSelector, meter: TrafficMeter, environ: Mapping[str, str]
) -> tuple[ExchangeRounds | None, ExchangeRounds | None]:
    """Return what reports and what moves, as far as they are asked for; all ranks call it together."""
    base, options = grid.base, choice.options
    hosts = [os.uname().nodename] if base is None else base.allgather(os.uname().nodename)
    journal = EventLog(environ.get("DDLRUN_RUN_DIR", "") if grid.rank == 0 else "")
    dump = rebind = None
    if options.dump_iter:
        report = IterationReport(grid, options.mode, hosts, meter, journal)
        dump = ExchangeRounds(base, options.dump_iter, report.width, report)
    if options.rebind_iter and base is not None:
        mover = CoreRebinding(base, hosts, environ.get("DDLRUN_SPARE_CPUS", ""), journal)
        rebind = ExchangeRounds(base, options.rebind_iter, mover.width, mover)
    return dump, rebind


def _bytes(arrays: Sequence[Any]) -> int:
    return sum(getattr(x, "nbytes", 8) for x in arrays)
