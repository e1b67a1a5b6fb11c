"""A job on a network before it runs: every decomposition, what a step takes, what a wrong order costs."""

import math
from typing import NamedTuple

from ddlrun.allreduce_algorithms import AllreduceAlgorithm
from ddlrun.network.cost import Cost, CostModel, axes_of, blocks_of, interleaved
from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.topology import Topology


class TrainingStep(NamedTuple):
    """What a step is: bytes of gradients, the mode of DDL, seconds of computing (None: not said).

    `overlap`: the share of the computing during which gradients already travel; 0: they wait for its end.
    """

    gradient: int
    mode: str = "p"
    compute: float | None = None
    overlap: float = 0.0


class Forecast(NamedTuple):
    """A decomposition: what its allreduce costs, seconds of a step, and computing as a share of it."""

    topology: Topology
    cost: Cost
    step: float | None
    efficiency: float | None


class UnevenData(NamedTuple):
    """Data that do not divide: steps of an epoch, and the best efficiency that they leave."""

    steps: int
    ceiling: float


class OrderPenalties(NamedTuple):
    """What a wrong order of hosts or ranks would cost, as times the bytes through the busiest link of a level.

    `hosts`: hosts of all racks in turn, (level, times); `ranks`: a flat collective (MPI_Allreduce) under ranks in ddl
    order instead of host order. None where that changes nothing.
    """

    hosts: tuple[str, float] | None
    ranks: tuple[str, float] | None


def decompositions(topology: Topology) -> list[Topology]:
    """Return every X x Y x Z with X as it is and Y x Z hosts; and the topology itself, where it has aisles."""
    x, hosts = topology.accelerators, topology.hosts
    small = [size for size in range(1, math.isqrt(hosts) + 1) if hosts % size == 0]
    sizes = sorted({*small, *(hosts // size for size in small)}, reverse=True)
    shapes = [Topology((x, size, hosts // size)) for size in sizes]
    return shapes if topology in shapes else [topology, *shapes]


def forecast(topology: Topology, wiring: Topology, fabric: Fabric, work: TrainingStep) -> Forecast:
    """Return what a decomposition costs on a network wired as XxYxZ: learners a host, hosts a rack, racks."""
    cost = CostModel(axes_of(topology), wiring, fabric).best(work.mode, work.gradient, blocking=not work.overlap)
    if work.compute is None:
        return Forecast(topology, cost, None, None)
    step = work.compute + max(0.0, cost.seconds - work.overlap * work.compute)
    return Forecast(topology, cost, step, work.compute / step)


def forecasts(topology: Topology, wiring: Topology, fabric: Fabric, work: TrainingStep) -> list[Forecast]:
    """Return all decompositions, the fastest first; of those that are as fast, `topology` comes first."""
    found = [forecast(one, wiring, fabric, work) for one in decompositions(topology)]
    return sorted(found, key=lambda one: (_shown(one), one.topology != topology, one.cost.seconds))


def _shown(one: Forecast) -> float:
    """Return the seconds of the allreduce, or of a step where it is known, with the digits that are shown."""
    return float(f"{one.cost.seconds:.3g}" if one.step is None else f"{one.step:.4g}")


def indivisible(items: int, learners: int, batch: int = 1) -> UnevenData:
    """Return what is left where items do not divide: every learner takes as many steps as the one with most.

    >>> indivisible(228, 16)
    UnevenData(steps=15, ceiling=0.95)
    """
    steps = -(-items // (learners * batch))
    return UnevenData(steps, items / (steps * learners * batch))


def mistakes(topology: Topology, wiring: Topology) -> OrderPenalties:
    """Return what a wrong order of hosts, or of ranks for a flat collective, would move more than the right one.

    In ddl order every next rank is in another rack (or, where there is one rack, on another host), so what a ring
    sends through a link is sent by each learner below it: 9.8 instead of 2.5 s for the network of
    docs/explanation/network.md, where 8.7 and 2.9 were measured.
    """
    right, wrong = (
        CostModel(axes, wiring, Fabric((Link(),) * len(LEVELS))).cost(AllreduceAlgorithm("native"), 1).volumes
        for axes in (axes_of(topology), interleaved(topology))
    )
    times = {level: wrong[level] / right[level] for level in range(1, len(LEVELS)) if right[level]}
    hosts = max((level for level, more in times.items() if more > 1), default=None)
    ranks = max((level for level, block in enumerate(blocks_of(wiring)) if 1 < block < topology.size), default=None)
    return OrderPenalties(
        None if hosts is None else (LEVELS[hosts], times[hosts]),
        None if ranks is None else (LEVELS[ranks], float(blocks_of(wiring)[ranks])),
    )


def wiring_of(topology: Topology, fabric: Fabric) -> Topology:
    """Return learners a host, hosts a rack, racks an aisle: what the fabric says of racks, else as the topology is."""
    x, y, z, *_ = topology.dims
    per_rack = min(fabric.hosts_per_rack or y, topology.hosts)
    racks = -(-topology.hosts // per_rack)
    per_aisle = min(fabric.racks_per_aisle or (z if fabric.hosts_per_rack in (None, y) else racks), racks)
    return Topology((x, per_rack, per_aisle, -(-racks // per_aisle)))
