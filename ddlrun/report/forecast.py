"""Decompositions of a job on a network, as text and as JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddlrun.network.fabric import LEVELS, Fabric, Link
from ddlrun.network.forecast import Forecast, OrderPenalties, OrderPenalty, TrainingStep, UnevenData
from ddlrun.network.unequal_nics import describe_slow_nics
from ddlrun.report.table import aligned
from ddlrun.topology import JobTopology, RankOrder, Topology, ddl_topology, describe
from ddlrun.units import render_byte_rate, render_bytes, render_rate, render_seconds
from ddlrun.wording import counted

# One screen.
MOST_ROWS = 16
ORDER = "host (consecutive ranks on each host)"
WITH_MODE = "; with --mode, launch uses ddl, in which ddlrun.ddl is equally fast"
LIMITS = {"nic": "NIC"}
NAMES = {
    "host": "inside a host, per rank",
    "nic": "NICs of a host",
    "uplink": "uplink of a rack",
    "aisle": "uplink of an aisle",
}
HEADS = {"nic": "out of a host", "uplink": "out of a rack", "aisle": "out of an aisle"}
SHARED = {"nic": "NICs", "uplink": "uplinks", "aisle": "aisles' uplinks"}


@dataclass(frozen=True, slots=True)
class Epoch:
    """The images of an epoch, those per learner and step, and their division among the learners."""

    images: int
    batch: int
    data: UnevenData


@dataclass(frozen=True, slots=True)
class ForecastReport:
    """The result of `ddlrun network plan`: the topology that launch takes and why, the network, all decompositions."""

    topology: JobTopology
    reason: str
    wiring: Topology
    fabric: Fabric
    work: TrainingStep
    gradient_source: str
    forecasts: Sequence[Forecast]
    penalties: OrderPenalties
    epoch: Epoch | None = None


def render_forecast(report: ForecastReport) -> str:
    """Render the decompositions, the fastest first, on one screen."""
    lines = [*_head(report), "", *_table(report), "", *_foot(report)]
    return "".join(f"{line}\n" for line in lines)


def _head(report: ForecastReport) -> Iterator[str]:
    topology, work = report.topology, report.work
    unequal = "" if isinstance(topology, Topology) else f"{topology}; each host counts as the largest: "
    yield f"{counted(topology.size, 'rank')}, wired as {report.wiring}: {unequal}{describe(report.wiring.dims)}"
    source = f", {report.fabric.source}" if report.fabric.source else ""
    yield f"{report.fabric.name}{source}:"
    for level, link in zip(LEVELS, report.fabric.links, strict=True):
        if level == "nic" or _is_used(report, level):
            yield f"  {NAMES[level]}: {_render_link(level, link)}"
    nic = report.fabric.links[LEVELS.index("nic")]
    yield from (f"  {sentence}" for sentence in describe_slow_nics(dict(report.fabric.nics), nic.capacity))
    compute = "" if work.compute is None else f"; computing {render_seconds(work.compute, 4)}, {_overlap(work.overlap)}"
    yield f"gradients: {render_bytes(work.gradient)} ({report.gradient_source}), mode {work.mode}{compute}"


def _render_link(level: str, link: Link) -> str:
    if link.capacity == math.inf:
        return "not given: no limit" + (", no time" if level == "host" else "")
    rate = render_byte_rate(link.bandwidth) if level == "host" else render_rate(link.bandwidth)
    parallel = f"{link.parallel} x " if link.parallel > 1 else ""
    payload = f" ({100 * link.payload:.1f} % payload)" if link.payload < 1 else ""
    latency = f", {render_seconds(link.latency)} per message" if link.latency else ""
    return f"{parallel}{rate}{payload} per direction{latency}"


def _overlap(share: float) -> str:
    return f"gradients are sent during {100 * share:g} % of it" if share else "gradients are sent after it"


def _is_used(report: ForecastReport, level: str) -> bool:
    return any(entry.cost.volumes[LEVELS.index(level)] for entry in report.forecasts)


def _table(report: ForecastReport) -> Iterator[str]:
    levels = [level for level in LEVELS[1:] if _is_used(report, level)]
    heads = ["topology", "steps", *(HEADS[level] for level in levels), "limit", "allreduce"]
    rows = [heads if report.work.compute is None else [*heads, "step", "efficiency"]]
    for entry in select(report.forecasts, report.topology):
        row = [f"{entry.topology}{' *' if entry.topology == report.topology else ''}", f"{entry.cost.steps}"]
        row += [render_bytes(entry.cost.volumes[LEVELS.index(level)]) for level in levels]
        row += [LIMITS.get(entry.cost.busiest, entry.cost.busiest), render_seconds(entry.cost.seconds)]
        if entry.step is not None and entry.efficiency is not None:
            row += [render_seconds(entry.step, 4), f"{100 * entry.efficiency:.1f} %"]
        rows.append(row)
    yield from aligned(rows)
    left = len(report.forecasts) - len(rows) + 1
    if left:
        yield f"... {left} slower topologies (--json prints all)"


def select(forecasts: Sequence[Forecast], topology: JobTopology) -> list[Forecast]:
    """Return the fastest MOST_ROWS forecasts; the last makes room for launch's own where it is slower."""
    own = [entry for entry in forecasts[MOST_ROWS:] if entry.topology == topology]
    return [*forecasts[: MOST_ROWS - len(own)], *own]


def _foot(report: ForecastReport) -> Iterator[str]:
    best, own = report.forecasts[0], next(entry for entry in report.forecasts if entry.topology == report.topology)
    factor = f"{own.cost.seconds / best.cost.seconds:.2f}" if best.cost.seconds else "1.00"
    slower = f", {factor} times the time of {best.topology}" if factor != "1.00" else ""
    yield f"* used by launch: {report.reason}{slower}"
    if not isinstance(report.topology, Topology):
        yield f"dimensions of ddlrun.ddl: {ddl_topology(report.topology)}"
    yield f"algorithm: {own.cost.algorithm}"
    yield f"rank order: {ORDER}{WITH_MODE if isinstance(report.topology, Topology) else ''}"
    hosts, ranks = report.penalties.hosts, report.penalties.ranks
    if hosts is not None:
        yield f"hosts listed across racks, not rack by rack: {hosts.factor:.3g}x the bytes on the {SHARED[hosts.level]}"
    if ranks is not None:
        yield f"flat ring (MPI_Allreduce) in ddl order: {ranks.factor:,.0f}x the bytes on the {SHARED[ranks.level]}"
    if report.epoch is not None:
        yield _render_epoch(report.epoch, own, report.topology.size)


def _render_epoch(epoch: Epoch, own: Forecast, learners: int) -> str:
    batch = f" in batches of {epoch.batch}" if epoch.batch > 1 else ""
    line = f"{counted(epoch.images, 'image')} on {counted(learners, 'rank')}{batch}: "
    line += f"{counted(epoch.data.steps, 'step')}, so at most {100 * epoch.data.ceiling:.1f} % efficiency"
    if own.efficiency is None or own.step is None:
        return line
    efficiency = f"{100 * own.efficiency * epoch.data.ceiling:.1f} %"
    return f"{line}; with the allreduce {efficiency}, {render_seconds(epoch.data.steps * own.step)} per epoch"


def forecast_dict(report: ForecastReport) -> dict[str, Any]:
    """Return the JSON of --json: bytes and seconds; null where there is no limit or no value was given."""
    epoch = report.epoch
    return {
        "topology": str(report.topology),
        "reason": report.reason,
        "rank_order": RankOrder.HOST.value,
        "wiring": str(report.wiring),
        "network": report.fabric.name,
        "links": {
            level: asdict(link) | {"bandwidth": link.bandwidth if link.bandwidth < math.inf else None}
            for level, link in zip(LEVELS, report.fabric.links, strict=True)
        },
        "workload": asdict(report.work),
        "decompositions": [_decomposition_dict(entry) for entry in report.forecasts],
        "wrong_order": {
            "hosts": _penalty_dict(report.penalties.hosts),
            "ranks": _penalty_dict(report.penalties.ranks),
        },
        "data": None if epoch is None else {"images": epoch.images, **asdict(epoch.data)},
    }


def _decomposition_dict(entry: Forecast) -> dict[str, Any]:
    return {
        "topology": str(entry.topology),
        "steps": entry.cost.steps,
        "limit": entry.cost.busiest,
        "bytes": dict(zip(LEVELS, entry.cost.volumes, strict=True)),
        "algorithm": str(entry.cost.algorithm),
        "allreduce": entry.cost.seconds,
        "step": entry.step,
        "efficiency": entry.efficiency,
    }


def _penalty_dict(penalty: OrderPenalty | None) -> dict[str, Any] | None:
    return None if penalty is None else {"level": penalty.level, "factor": penalty.factor}
