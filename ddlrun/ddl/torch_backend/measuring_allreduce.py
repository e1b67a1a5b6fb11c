"""An allreduce before which the NICs of the hosts are measured, or the hosts' start times are compared."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ddlrun.allreduce_algorithms import LATE, WEIGHTED, AllreduceAlgorithm
from ddlrun.ddl.late_host_monitor import LateSchedules
from ddlrun.ddl.nic_monitor import LARGEST_TRIAL, LEAST_BYTES, Comparison, Schedules
from ddlrun.ddl.reduce_ops import find_reduce_op
from ddlrun.ddl.torch_backend.works import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.ddl.communicators import Communicator
    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.late_host_monitor import LateHostMonitor
    from ddlrun.ddl.nic_monitor import NicMonitor
    from ddlrun.ddl.operation import Operation
    from ddlrun.ddl.reduce_ops import ReduceOp

EQUAL, SIZED, LAST = (AllreduceAlgorithm("chunks", algorithms) for algorithms in ((), WEIGHTED, LATE))


class Reductions(Schedules, LateSchedules, Protocol):
    """Begins the allreduces of a group."""

    def start_allreduce(self, elements: Any, operator: ReduceOp, algorithm: AllreduceAlgorithm) -> Operation:  # noqa: ANN401
        """Begin an allreduce by EQUAL, SIZED or LAST."""

    def start_usual_allreduce(self, elements: Any, operator: ReduceOp) -> Operation:  # noqa: ANN401
        """Begin an allreduce by the algorithm that was found to be the fastest one."""


def can_size_blocks(elements: Any, operator: ReduceOp) -> bool:  # noqa: ANN401 - a numpy array
    """Return True if blocks may have measured sizes: the array is large, and averages are divided at the end alone."""
    return elements.nbytes >= LEAST_BYTES and operator.division != "each"


@dataclass(frozen=True, slots=True)
class Monitors:
    """The monitors of a group (None if unused), its engine, and a communicator for measurements."""

    nics: NicMonitor | None
    late_host: LateHostMonitor | None
    engine: Engine
    world: Communicator

    def are_due(
        self,
        reductions: Reductions,
        elements: Any,  # noqa: ANN401 - a numpy array
        operator: ReduceOp,
    ) -> list[Callable[[], None]]:
        """Count an allreduce; return the measurements that are to be made before it."""
        due: list[Callable[[], None]] = []
        if elements.nbytes < LEAST_BYTES:
            return due
        trial = elements[: LARGEST_TRIAL // elements.itemsize]

        def compare(other: AllreduceAlgorithm, delay: float = 0) -> Comparison:
            measure = partial(
                self._measure, reductions, np.ones_like(trial), operator, delay * len(trial) / len(elements)
            )
            return Comparison(EQUAL, other, measure)

        if self.nics is not None and can_size_blocks(elements, operator) and self.nics.is_due(elements.nbytes):
            nics = self.nics
            due.append(lambda: nics.update(self.engine, reductions, compare(SIZED)))
        if self.late_host is not None and reductions.layout is None and self.late_host.is_due(self.engine):
            due.append(partial(self.late_host.update, reductions, partial(compare, LAST)))
        return due

    def _measure(
        self,
        reductions: Reductions,
        trial: Any,  # noqa: ANN401 - a numpy array
        operator: ReduceOp,
        delay: float,
        algorithm: AllreduceAlgorithm,
    ) -> float:
        """Return the slowest rank's seconds of a trial, which this rank begins `delay` seconds late."""
        self.world.Barrier()
        start = time.perf_counter()
        time.sleep(delay)
        self.engine.wait(reductions.start_allreduce(trial, operator, algorithm))
        seconds = np.array([time.perf_counter() - start])
        self.world.take_maxima(seconds)
        return float(seconds[0])


class MeasuringAllreduce(Exclusive):
    """An allreduce before which measurements are made.

    They begin when all members have called it: until then, a member may wait for a message of another one.
    """

    def __init__(
        self,
        reductions: Reductions,
        measurements: Sequence[Callable[[], None]],
        elements: Any,  # noqa: ANN401 - a numpy array
        operator: ReduceOp,
    ) -> None:
        self._reductions, self._measurements = reductions, measurements
        self._elements, self._operator = elements, operator
        self._has_begun = False
        # A barrier: it is complete when all members have begun it.
        self._operation = reductions.start_allreduce(np.zeros(1, np.uint8), find_reduce_op("uint8", "sum"), EQUAL)

    def __call__(self) -> bool:
        """Measure, then begin the allreduce; return whether it is complete."""
        if not self._operation.left and not self._has_begun:
            self._has_begun = True  # and never again if a work runs out of time meanwhile
            for measure in self._measurements:
                measure()
            self._operation = self._reductions.start_usual_allreduce(self._elements, self._operator)
            self.over = True
        return self.over and not self._operation.left
