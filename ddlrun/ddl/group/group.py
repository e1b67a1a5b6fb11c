"""A group of ranks: the choice of an algorithm for each allreduce, and its execution."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.allreduce_algorithms import LATE, WEIGHTED, MessageClass, host_part
from ddlrun.ddl.group.operation import Limits
from ddlrun.ddl.group.reduce_ops import can_narrow
from ddlrun.ddl.schedules.cache import Collective
from ddlrun.ddl.selection.autotune import LARGEST_TRIAL, Monitor, is_faster
from ddlrun.ddl.selection.int8_compression import ErrorFeedback
from ddlrun.ddl.selection.wire_compression import WIRES, parse_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm
    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.flat import FlatArray
    from ddlrun.ddl.group.operation import Operation
    from ddlrun.ddl.group.reduce_ops import ReduceOp
    from ddlrun.ddl.schedules.cache import ScheduleCache
    from ddlrun.ddl.selection.algorithm_selection import Selection
    from ddlrun.ddl.selection.autotune import Measure
    from ddlrun.ddl.transports.communicators import Communicator


class Group:
    """The allreduces of the ranks of a communicator. All ranks create it together, and make the same calls.

    An allreduce is prepared, its algorithm is selected, and then it is executed.

    Args:
        communicator: In host order: in ddl order a flat collective of the MPI library is several times slower.
        engine: Carries out what the schedules name; the ranks of its messages are those of the schedules.
        schedules: The schedules of this rank.
        selection: The algorithms.
        grid: Has the communicators of the dimensions, which mode m uses; None: there is no mode m.
    """

    def __init__(
        self,
        communicator: Communicator,
        engine: Engine,
        *,
        schedules: ScheduleCache,
        selection: Selection,
        grid: Grid | None = None,
    ) -> None:
        self.communicator, self.engine, self.grid = communicator, engine, grid
        self.schedules, self.selection, self._feedback = schedules, selection, ErrorFeedback()
        self.monitors = list[Monitor]()
        """What changes the algorithms of large arrays; see `make_monitors`."""

    def classify(
        self,
        elements: Any,  # noqa: ANN401
        reduce_op: ReduceOp,
        wire: str,
        *,
        whole: bool = True,
        blocking: bool = False,
    ) -> MessageClass:
        """Return the message class of an allreduce; `wire` is complete, as from `find_wire`."""
        selection = self.selection
        narrows = wire and can_narrow(wire, reduce_op) and elements.nbytes > selection.tuning.flat
        return MessageClass(
            size=elements.nbytes,
            dtype=reduce_op.dtype,
            whole=whole,
            blocking=blocking and self.communicator.collectives is not None,  # these serve callers that wait
            wire=wire if narrows else "",
            weighted=selection.layout is not None,
            division=reduce_op.division,
        )

    def prepare(self, message: MessageClass, elements: Any, reduce_op: ReduceOp) -> list[Callable[[], None]]:  # noqa: ANN401
        """Count an allreduce; return the measurements that are to be made before it.

        A measurement waits for messages of the other ranks. Nothing is in progress meanwhile.
        """
        due: list[Callable[[], None]] = []
        algorithm = self.selection.find(message)
        if algorithm is None:
            due.append(partial(self._explore, message, elements, reduce_op))
            algorithm = self.selection.default(message)
        monitors = [monitor for monitor in self.monitors if monitor.is_due(message, algorithm)]
        due += [partial(self._update, monitor, message, elements, reduce_op) for monitor in monitors]
        return due

    def select(self, message: MessageClass) -> AllreduceAlgorithm:
        """Return the algorithm of an allreduce after its measurements."""
        algorithm = self.selection.find(message) or self.selection.default(message)
        for monitor in self.monitors:
            algorithm = monitor.adapt(message, algorithm)
        return algorithm

    def restore_losses(self, message: MessageClass, elements: Any, arrays: Sequence[FlatArray], axes: str = "") -> Any:  # noqa: ANN401
        """Add what int8 has lost of arrays to their elements; return the array for what it will lose, or None."""
        return self._feedback.add_to(elements, arrays, axes) if message.wire.startswith("int8") else None

    def execute(
        self,
        algorithm: AllreduceAlgorithm,
        elements: Any,  # noqa: ANN401
        reduce_op: ReduceOp,
        axes: str = "",
        losses: Any = None,  # noqa: ANN401
    ) -> Operation | None:
        """Reduce elements in place; return the operation if it is in progress, None if it is complete."""
        if algorithm.method != "chunks":
            self.reduce_by_library(algorithm, elements, reduce_op, axes)
            return None
        if self.engine.meter is not None:
            self.engine.meter.names[: len(algorithm.algorithms)] = algorithm.algorithms
        itemsize, wire = elements.itemsize, parse_wire(algorithm.wire)
        longest = max(algorithm.chunk // WIRES.get(wire.dtype, itemsize), 1)
        collective = Collective("all_reduce", axes, algorithm.algorithms, algorithm.wire)
        schedule, host = partial(self.schedules.steps, collective), None
        part = host_part(elements.nbytes, longest * itemsize, self.selection.sizes.host_ranks)
        narrows = "X" in wire.axes  # whose blocks and roundings are those of chunks
        if part and not (axes or narrows or algorithm.algorithms in {WEIGHTED, LATE}):
            schedule = partial(self.schedules.steps, collective._replace(name="between_hosts"))
            host = self.schedules.host_parts(collective, part // itemsize)
        limits = Limits(longest, algorithm.depth, algorithm.connections)
        return self.engine.start(elements, reduce_op, schedule, limits, losses, host)

    def reduce_by_library(self, algorithm: AllreduceAlgorithm, elements: Any, reduce_op: ReduceOp, axes: str) -> None:  # noqa: ANN401
        """Reduce elements in place by the library's own collectives."""
        collectives, meter = self.communicator.collectives, self.engine.meter
        if collectives is None:
            return
        if algorithm.method == "flat":
            start = time.perf_counter()
            collectives.flat_allreduce(self.communicator, elements, reduce_op)
            if meter is not None:
                meter.add(-1, elements.nbytes, start, "MPI_Allreduce")
        elif self.grid is not None:
            collectives.allreduce_by_dimension(self.grid.along(axes), elements, reduce_op, meter)

    def free(self) -> None:
        """Complete what is in progress and free the engine's communicator. All ranks call it together."""
        self.engine.free()

    def _explore(self, message: MessageClass, elements: Any, reduce_op: ReduceOp) -> None:  # noqa: ANN401
        self.engine.drain()
        self.selection.explore(message, self._make_measure(np.ones_like(elements), reduce_op))

    def _update(self, monitor: Monitor, message: MessageClass, elements: Any, reduce_op: ReduceOp) -> None:  # noqa: ANN401
        """Let a monitor measure, and compare algorithms in trial reductions of elements like these."""
        self.engine.drain()
        trial = np.ones_like(elements[: LARGEST_TRIAL // elements.itemsize])
        algorithm = self.selection.find(message) or self.selection.default(message)

        def is_adapted_faster(delay: float) -> bool:
            measure = self._make_measure(trial, reduce_op, delay * len(trial) / len(elements))
            return is_faster(monitor.adapt(message, algorithm), algorithm, measure)

        monitor.update(is_adapted_faster)

    def _make_measure(self, elements: Any, reduce_op: ReduceOp, delay: float = 0) -> Measure:  # noqa: ANN401
        """Return a function that reduces elements by an algorithm, and returns the slowest rank's seconds.

        This rank begins `delay` seconds late.
        """

        def measure(algorithm: AllreduceAlgorithm) -> float:
            self.communicator.Barrier()
            start = time.perf_counter()
            time.sleep(delay)
            operation = self.execute(algorithm, elements, reduce_op)
            if operation is not None:
                self.engine.wait(operation)
            seconds = np.array([time.perf_counter() - start])
            self.communicator.take_maxima(seconds)
            return float(seconds[0])

        return measure
