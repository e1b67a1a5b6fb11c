"""A cache of the schedules of a learner's collectives."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.allreduce_algorithms import dimension_algorithm
from ddlrun.ddl.schedule import Dimension, ScheduleStep, mirror, own_block, reduce_scatter, wire_of
from ddlrun.ddl.wire_compression import parse_wire

if TYPE_CHECKING:
    from ddlrun.ddl.dimensions import Grid


class Collective(NamedTuple):
    """A collective of the engine.

    name: "all_reduce", "reduce_scatter" or "allgather". axes: the dimensions that it covers, "" for all. algorithms:
    that of each dimension of the grid; empty: the mode's. wire: "bfloat16:YZ" or the like, "" for float32.
    """

    name: str
    axes: str = ""
    algorithms: tuple[str, ...] = ()
    wire: str = ""


class ScheduleCache:
    """The schedules of one learner of a grid."""

    def __init__(self, grid: Grid, mode: str) -> None:
        self._grid, self._mode = grid, mode
        self.steps = lru_cache(maxsize=256)(self._make_steps)
        """steps(collective, count, division): the schedule for `count` elements. For `division` see `ReduceOp`."""
        self.dimensions = lru_cache(maxsize=16)(self._make_dimensions)
        """dimensions(axes, algorithms, wire): the dimensions that a collective covers."""

    def own_block(self, count: int) -> tuple[int, int]:
        """Return (low, high): the block that a reduce-scatter over the whole grid leaves with this learner."""
        return own_block(self.dimensions(""), count)

    def _make_steps(self, collective: Collective, count: int, division: str) -> tuple[ScheduleStep, ...]:
        name, *rest = collective
        dimensions = self.dimensions(*rest)
        if division and wire_of(dimensions) == "float16":
            division = "each"  # sums would leave the range of float16
        scatter = reduce_scatter(dimensions, count, division=division)
        gather = mirror(scatter)
        return tuple({"all_reduce": scatter + gather, "reduce_scatter": scatter, "allgather": gather}[name])

    def _make_dimensions(self, axes: str, algorithms: tuple[str, ...] = (), wire: str = "") -> list[Dimension]:
        dimensions, wire_format = [], parse_wire(wire)
        for number in self._grid.places(axes or self._grid.axes):
            axis = self._grid.axes[number]
            peers = self._grid.peers(axis)
            dimensions.append(
                Dimension(
                    peers,
                    self._grid.coords[number],
                    algorithms[number] if algorithms else dimension_algorithm(self._mode, len(peers)),
                    wire_format.dtype if axis in wire_format.axes else "",
                )
            )
        return dimensions
