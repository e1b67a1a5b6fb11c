"""A learner that times its iterations, and exchanges its figures with others, for -dump_iter and -rebind_iter.

Without these options nothing is measured.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ddlrun.allreduce_algorithms import dimension_algorithm
from ddlrun.ddl.group.handle import Handle
from ddlrun.ddl.learner import Learner
from ddlrun.ddl.monitor.core_rebinding import CoreRebinding
from ddlrun.ddl.monitor.iteration_report import EventLog, IterationReport
from ddlrun.ddl.monitor.meters import IterationTimer, TrafficMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.launch_context import HostPosition
    from ddlrun.ddl.monitor.meters import Iteration
    from ddlrun.ddl.transports.communicators import Communicator, Exchange

# Seconds to wait for the last rows: at the end of a job other ranks may be busy, or gone.
LAST_SECONDS = 1.0


class RowConsumer(Protocol):
    """A use of the exchange: it makes this learner's row, and acts on the rows of all."""

    def row(self, times: Sequence[Iteration]) -> Sequence[float]:
        """Return this learner's figures of some iterations."""

    def act(self, rows: NDArray[Any]) -> None:
        """Act on the figures of all learners: an array (learners, figures), in rank order."""


class StatsExchange:
    """An exchange of rows of `width` numbers over a communicator of its own. All ranks create and free it together.

    No rank waits. Ranks may be in different iterations where a script tests its handles, and a rank that waited there
    would not move the messages of those behind it. So rows are posted, one at a time, and polled for later.
    """

    def __init__(self, comm: Communicator, width: int) -> None:
        self._base, self._comm = comm, comm.Dup()
        self._mine = np.empty(width)
        self._rows = np.empty((comm.size, width))
        self._request: Exchange | None = None
        self._posted = 0

    @property
    def busy(self) -> bool:
        """True if the rows of a round are still to come."""
        return self._request is not None

    def post(self, row: Sequence[float]) -> None:
        """Send a row to all ranks."""
        self._mine[:] = row
        self._request = self._comm.Iallgather(self._mine, self._rows)
        self._posted += 1

    def poll(self) -> NDArray[Any] | None:
        """Return the rows of all ranks (learners, width), in rank order, once they are complete; else None."""
        if self._request is None or not self._request.Test():
            return None
        self._request = None
        return self._rows

    def last(self) -> NDArray[Any] | None:
        """Return the rows that are still to come, if they come within a second; None once MPI has ended."""
        if self._comm.ended:
            return None
        until = time.monotonic() + LAST_SECONDS
        while self.busy and time.monotonic() < until:
            if (rows := self.poll()) is not None:
                return rows
            time.sleep(0.001)
        return None

    def free(self) -> None:
        """Free the communicator. Ranks that have posted fewer rows than others post the rest."""
        most = max(self._base.allgather(self._posted))
        while self.busy or self._posted < most:
            if self._request is not None:
                self._request.Wait()
                self._request = None
            else:
                self.post(self._mine.tolist())
        self._comm.Free()


class ExchangeRounds:
    """Makes a row every `every` iterations, and acts on the rows of all once they have come."""

    def __init__(self, comm: Communicator, every: int, width: int, consumer: RowConsumer) -> None:
        self._exchange = StatsExchange(comm, width)
        self._every, self._consumer = every, consumer
        self._times: list[Iteration] = []

    @property
    def last_of_round(self) -> bool:
        """True if the next iteration is the last of a round, or later."""
        return len(self._times) + 1 >= self._every

    def add(self, iteration: Iteration) -> None:
        """Count an iteration."""
        self._times.append(iteration)
        self._act()
        if len(self._times) < self._every or self._exchange.busy:
            return
        row, self._times = self._consumer.row(self._times), []
        self._exchange.post(row)
        self._act()

    def last(self) -> None:
        """Act on the rows that are still to come."""
        if (rows := self._exchange.last()) is not None:
            self._consumer.act(rows)

    def free(self) -> None:
        """Free the communicator. All ranks call it together."""
        self.last()
        self._exchange.free()

    def _act(self) -> None:
        if (rows := self._exchange.poll()) is not None:
            self._consumer.act(rows)


class InstrumentedLearner(Learner):
    """A learner whose calls are timed; `environ` has the run folder and the host's spare CPUs."""

    def __init__(self, grid: Grid, group: Group, host: HostPosition, environ: Mapping[str, str]) -> None:
        super().__init__(grid, group, host)
        self._meter = _make_meter(grid, self.options.mode)
        self._dump: ExchangeRounds | None = None
        self._rebind: ExchangeRounds | None = None
        base, hosts = grid.base, grid.base.allgather(os.uname().nodename)
        log = EventLog(environ.get("DDLRUN_RUN_DIR", "") if grid.rank == 0 else "")
        if self.options.dump_iter:
            report = IterationReport(grid, self.options.mode, hosts, self._meter, log)
            self._dump = ExchangeRounds(base, self.options.dump_iter, report.width, report)
            atexit.register(self._dump.last)
        if self.options.rebind_iter and base.size > 1:
            rebinding = CoreRebinding(base, hosts, environ.get("DDLRUN_SPARE_CPUS", ""), log)
            self._rebind = ExchangeRounds(base, self.options.rebind_iter, rebinding.width, rebinding)
        self._warm = False
        self._timer = IterationTimer()

    def free(self) -> None:
        """Free the communicators and the process groups."""
        for rounds in (self._dump, self._rebind):
            if rounds is not None:
                rounds.free()
                atexit.unregister(rounds.last)
        super().free()

    def all_reduce(self, x: Any, op: str, axes: str, in_place: bool, wire: str | None = None) -> Any:  # noqa: ANN401, D102, FBT001
        with self._timer:
            result = super().all_reduce(x, op, axes, in_place, wire)
        self._end_iteration(self._timer.end_wait(_nbytes([x])))
        return result

    def all_reduce_n(  # noqa: D102
        self, arrays: Sequence[Any], op: str, *, axes: str, in_place: bool, wire: str | None
    ) -> list[Any]:
        with self._timer:
            results = super().all_reduce_n(arrays, op, axes=axes, in_place=in_place, wire=wire)
        self._end_iteration(self._timer.end_wait(_nbytes(arrays)))
        return results

    def start(self, arrays: Sequence[Any], op: str, *, axes: str, wire: str | None) -> Handle:  # noqa: D102
        with self._timer:
            handle = super().start(arrays, op, axes=axes, wire=wire)
        self._timer.begin_reduction(_nbytes(arrays))
        handle.at_end.append(self._timer.end_reduction)
        return _TimedHandle(handle, self._timer, self._end_iteration)

    def reduce_scatter(self, x: Any, op: str) -> Any:  # noqa: ANN401, D102
        with self._timer:
            result = super().reduce_scatter(x, op)
        self._end_iteration(self._timer.end_wait(_nbytes([x])))
        return result

    def allgather_pieces(self, x: Any) -> Any:  # noqa: ANN401, D102
        with self._timer:
            return super().allgather_pieces(x)

    def allgather(self, x: Any) -> Any:  # noqa: ANN401, D102
        with self._timer:
            return super().allgather(x)

    def bcast(self, x: Any, root: int, *, in_place: bool) -> Any:  # noqa: ANN401, D102
        with self._timer:
            return super().bcast(x, root, in_place=in_place)

    def barrier(self) -> None:  # noqa: D102
        with self._timer:
            super().barrier()

    def _end_iteration(self, iteration: Iteration | None) -> None:
        """Count an iteration, if there is one, and choose whether the next one is sampled."""
        if iteration is None:
            return
        if self._warm:
            for rounds in (self._dump, self._rebind):
                if rounds is not None:
                    rounds.add(iteration)
        self._warm = True  # the first iteration included the start of the script
        sampled = self._dump is not None and self._dump.last_of_round
        if sampled:
            self._meter.reset()
        self.group.engine.meter = self._meter if sampled else None
        # A sampled iteration takes no short path past the reducer.
        self._small_messages = None if sampled else self.reducer.small_messages
        self._timer.skip()


class _TimedHandle(Handle):
    """A handle whose waiting is timed."""

    def __init__(
        self, handle: Handle, timer: IterationTimer, end_iteration: Callable[[Iteration | None], None]
    ) -> None:
        self._handle, self._timer, self._end_iteration = handle, timer, end_iteration

    def wait(self) -> None:
        with self._timer:
            self._handle.wait()
        self._end_iteration(self._timer.end_wait())

    def test(self) -> bool:
        with self._timer:
            return self._handle.test()


def _make_meter(grid: Grid, mode: str) -> TrafficMeter:
    axis_of = {peer: number for number, axis in enumerate(grid.axes) for peer in grid.peers(axis) if peer != grid.rank}
    return TrafficMeter(axis_of, [dimension_algorithm(mode, size) for size in grid.topology.dims])


def _nbytes(arrays: Sequence[Any]) -> int:
    return sum(getattr(x, "nbytes", 8) for x in arrays)
