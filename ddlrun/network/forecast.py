"""Forecast of a job on a network: every decomposition, the time of a step, the penalty of a wrong order."""

import math
from dataclasses import dataclass

from ddlrun.allreduce_algorithms import AllreduceAlgorithm
from ddlrun.block_sizing import JobLinks
from ddlrun.network.cost import Cost, CostModel
from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.network.message_counts import axes_of, blocks_of, interleaved
from ddlrun.network.unequal_nics import unequal_cost
from ddlrun.topology import JobTopology, Topology, UnequalTopology, ddl_topology


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step of training: bytes of gradients, the mode of DDL, seconds of computing (None: not given).

    `overlap`: the share of the computing time during which gradients travel; 0: they travel after it.
    """

    gradient: int
    mode: str = "p"
    compute: float | None = None
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A decomposition: the cost of its allreduce, the seconds of a step, and computing as a share of the step."""

    topology: JobTopology
    cost: Cost
    step: float | None
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class UnevenData:
    """Data that learners cannot share evenly: the steps of an epoch, and the best efficiency that they allow."""

    steps: int
    ceiling: float


@dataclass(frozen=True, slots=True)
class OrderPenalty:
    """The level whose busiest link carries more bytes, and by what factor."""

    level: str
    factor: float


@dataclass(frozen=True, slots=True)
class OrderPenalties:
    """Penalties of a wrong order; None where it changes nothing.

    `hosts`: hosts are listed across racks; `ranks`: a flat collective (MPI_Allreduce) with ranks in ddl order instead
    of host order.
    """

    hosts: OrderPenalty | None
    ranks: OrderPenalty | None


def decompositions(topology: Topology) -> list[Topology]:
    """Return every X x Y x Z with the same X and Y x Z hosts; and the topology itself, where it has aisles."""
    x, hosts = topology.ranks_per_host, topology.hosts
    small = [size for size in range(1, math.isqrt(hosts) + 1) if hosts % size == 0]
    sizes = sorted({*small, *(hosts // size for size in small)}, reverse=True)
    shapes = [Topology((x, size, hosts // size)) for size in sizes]
    return shapes if topology in shapes else [topology, *shapes]


def forecast(
    topology: JobTopology, wiring: Topology, fabric: Fabric, work: TrainingStep, *, links: JobLinks | None = None
) -> Forecast:
    """Return the forecast of one decomposition of a wiring, which is ranks per host, hosts per rack, racks.

    `links` are those by which ddlrun.ddl sizes its blocks; None: blocks are equal.
    """
    if links is not None and work.mode != "m":
        cost = unequal_cost(links, fabric, work.gradient)
    else:
        model = CostModel(axes_of(ddl_topology(topology)), wiring, fabric)
        cost = model.best(work.mode, work.gradient, blocking=not work.overlap)
    if work.compute is None:
        return Forecast(topology, cost, None, None)
    step = work.compute + max(0.0, cost.seconds - work.overlap * work.compute)
    return Forecast(topology, cost, step, work.compute / step)


def forecasts(
    topology: JobTopology, wiring: Topology, fabric: Fabric, work: TrainingStep, *, links: JobLinks | None = None
) -> list[Forecast]:
    """Return all decompositions, the fastest first; `topology` comes first of those that print the same time.

    Unequal hosts have a single one. `links` has those by which ddlrun.ddl sizes its blocks, where it does.
    """
    shapes = [topology] if isinstance(topology, UnequalTopology) else decompositions(topology)
    unsorted = [forecast(shape, wiring, fabric, work, links=links) for shape in shapes]
    return sorted(unsorted, key=lambda entry: (_printed(entry), entry.topology != topology, entry.cost.seconds))


def _printed(entry: Forecast) -> float:
    """Return the seconds of a step, or of the allreduce where no step is known, rounded as they are printed."""
    return float(f"{entry.cost.seconds:.3g}" if entry.step is None else f"{entry.step:.4g}")


def uneven_data(items: int, learners: int, batch: int = 1) -> UnevenData:
    """Return the loss from items that do not divide: every learner takes as many steps as the one with the most items.

    >>> uneven_data(228, 16)
    UnevenData(steps=15, ceiling=0.95)
    """
    steps = -(-items // (learners * batch))
    return UnevenData(steps, items / (steps * learners * batch))


def order_penalties(topology: JobTopology, wiring: Topology) -> OrderPenalties:
    """Return the penalties of a wrong order of hosts, and of ranks for a flat collective; none for unequal hosts.

    In ddl order rank + 1 is in another rack (or, with one rack, on another host), so a ring sends
    through a link the messages of every learner below it; in host order it sends those of one.
    """
    if isinstance(topology, UnequalTopology):
        return OrderPenalties(None, None)
    right, wrong = (
        CostModel(axes, wiring, Fabric((Link(),) * len(LEVELS))).cost(AllreduceAlgorithm("native"), 1).volumes
        for axes in (axes_of(topology), interleaved(topology))
    )
    factors = {level: wrong[level] / right[level] for level in range(1, len(LEVELS)) if right[level]}
    hosts = max((level for level, factor in factors.items() if factor > 1), default=None)
    ranks = max((level for level, block in enumerate(blocks_of(wiring)) if 1 < block < topology.size), default=None)
    return OrderPenalties(
        None if hosts is None else OrderPenalty(LEVELS[hosts], factors[hosts]),
        None if ranks is None else OrderPenalty(LEVELS[ranks], float(blocks_of(wiring)[ranks])),
    )


def wiring_of(topology: JobTopology, fabric: Fabric) -> Topology:
    """Return learners per host, hosts per rack, racks per aisle: the fabric's racks, or else the topology's.

    Unequal hosts count as if each had the most ranks, and as one rack.
    """
    dims = topology.dims if isinstance(topology, Topology) else (topology.largest, topology.hosts, 1)
    x, y, z, *_ = dims
    per_rack = min(fabric.hosts_per_rack or y, topology.hosts)
    racks = -(-topology.hosts // per_rack)
    per_aisle = min(fabric.racks_per_aisle or (z if fabric.hosts_per_rack in (None, y) else racks), racks)
    return Topology((x, per_rack, per_aisle, -(-racks // per_aisle)))
