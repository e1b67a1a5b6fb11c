"""A cache of the schedules of a rank's collectives."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.allreduce_algorithms import LATE, WEIGHTED
from ddlrun.ddl.group.operation import HostParts
from ddlrun.ddl.schedules import late_schedule, weighted_schedule
from ddlrun.ddl.schedules.schedule import (
    Dimension,
    ScheduleStep,
    between_hosts,
    mirror,
    own_block,
    reduce_scatter,
    scatter_part,
    wire_of,
)
from ddlrun.ddl.selection.wire_compression import parse_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddlrun.ddl.schedules.schedule import Steps
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout


class Collective(NamedTuple):
    """A collective of the engine.

    name: "all_reduce", "reduce_scatter" or "allgather"; or a stage of an all_reduce whose first dimension is inside
    the hosts: "scatter_part" or "between_hosts". axes: the dimensions that it covers, "" for all.
    algorithms: that of each dimension, LATE or WEIGHTED; empty: the usual ones. wire: "bfloat16:YZ" or the
    like, "" for float32.
    """

    name: str
    axes: str = ""
    algorithms: tuple[str, ...] = ()
    wire: str = ""


class ScheduleCache:
    """The schedules of one rank.

    Args:
        dimensions: The dimensions by their letters, with their usual algorithms.
        rank: This rank.
        layout: The hosts if they or their links are unequal.
    """

    def __init__(self, dimensions: Mapping[str, Dimension], rank: int, layout: HostLayout | None = None) -> None:
        self._dimensions, self._rank, self.layout = dimensions, rank, layout
        self.late_host: int | None = None
        """The host that is taken last by LATE, as its place in the dimension between hosts."""
        self.steps = lru_cache(maxsize=256)(self._make_steps)
        """steps(collective, count, division): the schedule for `count` elements. For `division` see `ReduceOp`."""
        self.dimensions = lru_cache(maxsize=16)(self._make_dimensions)
        """dimensions(axes, algorithms, wire): the dimensions that a collective covers."""

    def set_layout(self, layout: HostLayout | None) -> None:
        """Use another layout from the next collective on. All ranks call it together."""
        self.layout = layout
        self.steps.cache_clear()

    def set_late_host(self, host: int | None) -> None:
        """Take another host last from the next collective on. All ranks call it together."""
        self.late_host = host
        self.steps.cache_clear()

    def own_block(self, count: int) -> tuple[int, int]:
        """Return (low, high): the block that a reduce-scatter over the whole grid leaves with this learner."""
        return own_block(self.dimensions(""), count)

    def host_parts(self, collective: Collective, longest: int) -> HostParts:
        """Return the steps of an all_reduce inside the hosts, in parts of up to `longest` elements."""
        first = self._dimensions_of(collective)[:1]
        return HostParts(
            partial(self.steps, collective._replace(name="scatter_part")),
            partial(own_block, first),
            longest,
        )

    def _dimensions_of(self, collective: Collective) -> list[Dimension]:
        return self.dimensions(collective.axes, collective.algorithms, collective.wire)

    def _make_steps(self, collective: Collective, count: int, division: str) -> tuple[ScheduleStep, ...]:
        if collective.algorithms == WEIGHTED and self.layout is not None and division != "each":
            weighted = self._make_weighted_steps(self.layout, count, division, collective.wire)
            return (*weighted, *mirror(weighted))
        if collective.algorithms == LATE and self.late_host is not None:
            return late_schedule.allreduce(self.dimensions(""), self.late_host, count, division=division)
        dimensions = self._dimensions_of(collective)
        if division and wire_of(dimensions) == "float16":
            division = "each"  # sums would leave the range of float16
        if collective.name == "between_hosts":
            return tuple(between_hosts(dimensions, count, division=division))
        if collective.name == "scatter_part":
            return tuple(scatter_part(dimensions, count, division=division))
        scatter = reduce_scatter(dimensions, count, division=division)
        gather = mirror(scatter)
        return tuple({"all_reduce": scatter + gather, "reduce_scatter": scatter, "allgather": gather}[collective.name])

    def _make_weighted_steps(self, layout: HostLayout, count: int, division: str, wire: str) -> Steps:
        """Return a reduce-scatter over unequal hosts or links; the wire is that between hosts, in all dimensions."""
        between_hosts = parse_wire(wire).dtype
        return weighted_schedule.reduce_scatter(
            layout, self._rank, count, division=bool(division), wires=("", between_hosts, between_hosts)
        )

    def _make_dimensions(self, axes: str, algorithms: tuple[str, ...] = (), wire: str = "") -> list[Dimension]:
        dimensions, narrow = [], parse_wire(wire)
        named = algorithms if algorithms not in {WEIGHTED, LATE} else ()
        for number, (axis, dimension) in enumerate(self._dimensions.items()):
            if not axes or axis in axes:
                algorithm = named[number] if named else dimension.algorithm
                dtype = narrow.dtype if axis in narrow.axes else ""
                dimensions.append(dimension._replace(algorithm=algorithm, wire=dtype))
        return dimensions
