"""An allreduce before which the NICs of the hosts are measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ddlrun.allreduce_algorithms import WEIGHTED, AllreduceAlgorithm
from ddlrun.ddl.communicators import take_maxima
from ddlrun.ddl.nic_monitor import LARGEST_TRIAL, Comparison, Schedules
from ddlrun.ddl.reduce_ops import find_reduce_op
from ddlrun.ddl.torch_backend.progress_thread import Exclusive

if TYPE_CHECKING:
    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.nic_monitor import NicMonitor
    from ddlrun.ddl.operation import Operation
    from ddlrun.ddl.reduce_ops import ReduceOp
    from ddlrun.ddl.tcp.communicator import TcpCommunicator

EQUAL, SIZED = AllreduceAlgorithm("chunks"), AllreduceAlgorithm("chunks", WEIGHTED)


class Measurement(NamedTuple):
    """The objects that a measurement uses: the group's engine, and a communicator of its own."""

    monitor: NicMonitor
    engine: Engine
    world: TcpCommunicator


class Reductions(Schedules, Protocol):
    """Begins the allreduces of a group."""

    def start_allreduce(self, elements: Any, operator: ReduceOp, *, weighted: bool) -> Operation:  # noqa: ANN401
        """Begin an allreduce with blocks sized by the links, or equal ones."""

    def start_usual_allreduce(self, elements: Any, operator: ReduceOp) -> Operation:  # noqa: ANN401
        """Begin an allreduce with blocks that are sized by the links if these are unequal."""


class MeasuringAllreduce(Exclusive):
    """An allreduce before which the NICs are measured.

    That begins when all members have called it: until then, a member may wait for a message of another one.
    """

    def __init__(
        self,
        reductions: Reductions,
        measurement: Measurement,
        elements: Any,  # noqa: ANN401 - a numpy array
        operator: ReduceOp,
    ) -> None:
        self._reductions, self._measurement = reductions, measurement
        self._elements, self._operator = elements, operator
        self._has_begun = False
        # A barrier: it is complete when all members have begun it.
        self._operation = reductions.start_allreduce(
            np.zeros(1, np.uint8), find_reduce_op("uint8", "sum"), weighted=False
        )

    def __call__(self) -> bool:
        """Measure, then begin the allreduce; return whether it is complete."""
        if not self._operation.left and not self._has_begun:
            self._has_begun = True  # and never again if a work runs out of time meanwhile
            self._measure()
            self._operation = self._reductions.start_usual_allreduce(self._elements, self._operator)
            self.over = True
        return self.over and not self._operation.left

    def _measure(self) -> None:
        monitor, engine, world = self._measurement
        trial = np.ones_like(self._elements[: LARGEST_TRIAL // self._elements.itemsize])

        def measure(algorithm: AllreduceAlgorithm) -> float:
            world.Barrier()
            start = time.perf_counter()
            weighted = algorithm == SIZED
            engine.wait(self._reductions.start_allreduce(trial, self._operator, weighted=weighted))
            seconds = np.array([time.perf_counter() - start])
            take_maxima(world, seconds)
            return float(seconds[0])

        monitor.update(engine, self._reductions, Comparison(EQUAL, SIZED, measure))
