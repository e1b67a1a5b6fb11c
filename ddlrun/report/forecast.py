"""Decompositions of a job on a network, as text and as JSON."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ddlrun.network.fabric import LEVELS, Fabric
from ddlrun.network.forecast import Forecast, OrderPenalties, TrainingStep, UnevenData
from ddlrun.topology import RankOrder, Topology, describe
from ddlrun.units import render_bytes, render_rate, render_seconds

# One screen.
MOST_ROWS = 16
ORDER = "host, contiguous on each host; with --mode launch takes ddl, in which ddlrun.ddl is as fast"
LIMITS = {"nic": "NIC"}
NAMES = {
    "host": "inside a host, a learner",
    "nic": "NICs of a host",
    "uplink": "uplink of a rack",
    "aisle": "uplink of an aisle",
}
OUT = {"nic": "out of a host", "uplink": "of a rack", "aisle": "of an aisle"}
SHARED = {"nic": "NICs", "uplink": "uplinks", "aisle": "aisles' uplinks"}


class ForecastReport(NamedTuple):
    """What `ddlrun plan` has found: the topology that launch takes and why, the network, all decompositions."""

    topology: Topology
    reason: str
    wiring: Topology
    fabric: Fabric
    work: TrainingStep
    gradient_source: str
    found: Sequence[Forecast]
    mistakes: OrderPenalties
    data: UnevenData | None = None
    images: int = 0
    batch: int = 1


def render_prospect(prospect: ForecastReport) -> str:
    """Write the decompositions, the fastest first, on one screen."""
    lines = [*_head(prospect), "", *_table(prospect), "", *_foot(prospect)]
    return "".join(f"{line}\n" for line in lines)


def _head(prospect: ForecastReport) -> Iterator[str]:
    topology, work = prospect.topology, prospect.work
    yield f"{_counted(topology.size, 'learner')}, wired as {prospect.wiring}: {describe(prospect.wiring.dims)}"
    source = f", {prospect.fabric.source}" if prospect.fabric.source else ""
    yield f"{prospect.fabric.name}{source}:"
    for level, link in zip(LEVELS, prospect.fabric.links, strict=True):
        used = level == "nic" or _used(prospect, level)
        if used and link.capacity == math.inf:
            yield f"  {NAMES[level]}: not said, so no limit" + (", and no time" if level == "host" else "")
        elif used:
            rate = f"{link.bandwidth / 1e9:g} GB/s" if level == "host" else render_rate(link.bandwidth)
            times = f"{link.parallel} x " if link.parallel > 1 else ""
            share = f" ({100 * link.payload:.1f} % of it data)" if link.payload < 1 else ""
            latency = f", {render_seconds(link.latency)} a message" if link.latency else ""
            yield f"  {NAMES[level]}: {times}{rate}{share} each way{latency}"
    compute = "" if work.compute is None else f"; computing {render_seconds(work.compute, 4)}, {_overlap(work.overlap)}"
    yield f"gradients: {render_bytes(work.gradient)} ({prospect.gradient_source}), mode {work.mode}{compute}"


def _overlap(share: float) -> str:
    return f"gradients travel during {100 * share:g} % of it" if share else "gradients travel after it"


def _used(prospect: ForecastReport, level: str) -> bool:
    return any(one.cost.volumes[LEVELS.index(level)] for one in prospect.found)


def _table(prospect: ForecastReport) -> Iterator[str]:
    levels = [level for level in LEVELS[1:] if _used(prospect, level)]
    steps = prospect.work.compute is not None
    heads = [
        "topology",
        "steps",
        *(OUT[level] for level in levels),
        "limit",
        "allreduce",
    ]
    rows = [[*heads, "step", "efficiency"] if steps else heads]
    for one in shown(prospect.found, prospect.topology):
        row = [f"{one.topology}{' *' if one.topology == prospect.topology else ''}", f"{one.cost.steps}"]
        row += [render_bytes(one.cost.volumes[LEVELS.index(level)]) for level in levels]
        row += [LIMITS.get(one.cost.busiest, one.cost.busiest), render_seconds(one.cost.seconds)]
        if one.step is not None and one.efficiency is not None:
            row += [render_seconds(one.step, 4), f"{100 * one.efficiency:.1f} %"]
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        first, *others = (cell.ljust(width) if at == 0 else cell.rjust(width)
                          for at, (cell, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        yield "  ".join([first, *others]).rstrip()
    left = len(prospect.found) - len(rows) + 1
    if left:
        yield f"... {left} slower ones (--json has all)"


def shown(found: Sequence[Forecast], topology: Topology) -> list[Forecast]:
    """Return those that are shown: the fastest, and launch's own wherever it is."""
    own = [one for one in found[MOST_ROWS:] if one.topology == topology]
    return [*found[: MOST_ROWS - len(own)], *own]


def _foot(prospect: ForecastReport) -> Iterator[str]:
    best, own = prospect.found[0], next(one for one in prospect.found if one.topology == prospect.topology)
    times = f"{own.cost.seconds / best.cost.seconds:.2f}" if best.cost.seconds else "1.00"
    more = f", {times} times the time of {best.topology}" if times != "1.00" else ""
    yield f"* launch takes it: {prospect.reason}{more}"
    yield f"way: {own.cost.way}"
    yield f"rank order: {ORDER}"
    hosts, ranks = prospect.mistakes
    if hosts is not None:
        yield f"hosts of the racks in turn, not rack by rack, would move {hosts[1]:.3g}x over the {SHARED[hosts[0]]}"
    if ranks is not None:
        yield f"a flat ring (MPI_Allreduce) under ddl order would move {ranks[1]:,.0f}x over the {SHARED[ranks[0]]}"
    if prospect.data is not None:
        batch = f" {prospect.batch} at a time" if prospect.batch > 1 else ""
        yield (
            f"{_counted(prospect.images, 'image')} on {_counted(prospect.topology.size, 'learner')}{batch}: "
            f"{_counted(prospect.data.steps, 'step')}, so "
            f"at most {100 * prospect.data.ceiling:.1f} % efficiency{_attained(own, prospect.data)}"
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _attained(own: Forecast, data: UnevenData) -> str:
    if own.efficiency is None or own.step is None:
        return ""
    epoch = render_seconds(data.steps * own.step)
    return f"; with the allreduce {100 * own.efficiency * data.ceiling:.1f} %, an epoch {epoch}"


def prospect_dict(prospect: ForecastReport) -> dict[str, Any]:
    """Return what `--json` prints: bytes and seconds; null stands for no limit or for what was not said."""
    return {
        "topology": str(prospect.topology),
        "reason": prospect.reason,
        "rank_order": RankOrder.HOST.value,
        "wiring": str(prospect.wiring),
        "network": prospect.fabric.name,
        "links": {
            level: link._asdict() | {"bandwidth": link.bandwidth if link.bandwidth < math.inf else None}
            for level, link in zip(LEVELS, prospect.fabric.links, strict=True)
        },
        "work": prospect.work._asdict(),
        "decompositions": [
            {
                "topology": str(one.topology), "steps": one.cost.steps, "limit": one.cost.busiest,
                "bytes": dict(zip(LEVELS, one.cost.volumes, strict=True)), "way": str(one.cost.way),
                "allreduce": one.cost.seconds, "step": one.step, "efficiency": one.efficiency,
            }
            for one in prospect.found
        ],
        "wrong_order": {
            name: None if found is None else {"level": found[0], "times": found[1]}
            for name, found in zip(OrderPenalties._fields, prospect.mistakes, strict=True)
        },
        "data": None if prospect.data is None else {"images": prospect.images, **prospect.data._asdict()},
    }  # fmt: skip
