"""The views of ddlrun show: parts of a launch as text and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlrun.environment.frameworks import OWN
from ddlrun.environment.secrets import redact
from ddlrun.errors import spell_options
from ddlrun.hosts import Host, HostList, fold
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.rack_layout import by_rack, shape_reason
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan.plan import Plan, placement_dict, shown_command
from ddlrun.plan.rank_variables import own_variables, shared_variables
from ddlrun.plan.settings import Settings
from ddlrun.report.picture import Canvas, render_placement
from ddlrun.topology import JobTopology, Topology, describe
from ddlrun.wording import counted

if TYPE_CHECKING:
    from ddlrun.plan.records import ShownPlacement

# The ranks whose variables are shown without --ranks.
MOST_RANKS = 16


@dataclass(frozen=True, slots=True)
class View:
    """A part of a launch."""

    text: str
    record: object
    """The part as JSON can carry it."""


def show_placement(placement: Placement, reason: TopologyReason, canvas: Canvas) -> View:
    """Return the packages, cores, GPUs and NICs, with the ranks on them."""
    record: ShownPlacement = {"schema": "urn:ddlrun:placement:1", **placement_dict(placement)}
    picture = render_placement(placement, canvas)
    return View(f"{placement.topology}: {reason}\n{picture}", record)


def show_rankfile(placement: Placement, majors: Sequence[int]) -> View:
    """Return the rank file for these major versions of Open MPI."""
    text = "".join(render(placement, f"by ddlrun: {placement.topology}", majors))
    return View(text, {"rankfile": text})


def show_command(plan: Plan) -> View:
    """Return the command that launch runs."""
    return View(shown_command(plan), {"argv": list(plan.printed_argv), "variables": plan.printed_variables})


def show_topology(placement: Placement, reason: TopologyReason, settings: Settings) -> View:
    """Return XxYxZ, and the reason for it."""
    topology, hosts = placement.topology, placement.hosts
    dims = topology.dims if isinstance(topology, Topology) else ()
    groups = _groups_of_hosts(topology, hosts)
    racks = [" + ".join(dict.fromkeys(host.rack or "?" for host in group)) for group in groups]
    has_racks = any(host.rack for host in hosts)
    lines = [f"{topology}: {counted(topology.size, 'rank')}, unequal hosts\n", f"ranks per host: {reason}\n"]
    if dims:
        hosts_reason = reason.hosts or _shape_reason(settings)
        lines = [f"{topology}: {describe(dims)}\n", f"X: {reason.ranks_per_host}\n", f"Y, Z: {hosts_reason}\n"]
    for number, (members, rack) in enumerate(zip(groups, racks, strict=True)):
        name = rack if has_racks else f"rack {number}"
        lines.append(f"{name}: {fold(host.name for host in members)}\n")
    record = {
        "topology": str(topology),
        "dims": list(dims),
        "ranks_per_host": [topology.local_size(index) for index in range(topology.hosts)],
        "reason": str(reason),
        "racks": [
            {"rack": rack if has_racks else None, "hosts": [host.name for host in group]}
            for group, rack in zip(groups, racks, strict=True)
        ],
        "source": hosts.source,
        "notes": list(settings.hosts.notes),
    }
    return View("".join(lines), record)


def _groups_of_hosts(topology: JobTopology, hosts: HostList) -> list[tuple[Host, ...]]:
    """Return the groups of Y hosts; unequal hosts by rack."""
    if isinstance(topology, Topology):
        size = topology.dims[1]
        return [hosts.hosts[at : at + size] for at in range(0, len(hosts), size)]
    return [tuple(rack) for rack in by_rack(hosts).values()] or [hosts.hosts]


def _shape_reason(settings: Settings) -> str:
    if settings.job.topology.topology is not None:
        return "--topology"
    return spell_options(settings.job.shape_options) or shape_reason(settings.hosts.hosts)


def show_hosts(placement: Placement, settings: Settings) -> View:
    """Return the hosts with their ranks and racks, and the source of the list."""
    rows: list[str] = []
    values: list[dict[str, Any]] = []
    for index, host in enumerate(placement.hosts):
        coords = placement.topology.host_coords(index)
        ranks = list(placement.topology.ranks_of(index, placement.order))
        rack = host.rack or ".".join(map(str, coords[1:]))
        rows.append(f"{host.name}  rack {rack}  host {coords[0]}  ranks {','.join(map(str, ranks))}\n")
        values.append({"name": host.name, "slots": host.slots, "rack": rack, "coords": list(coords), "ranks": ranks})
    source, launcher = placement.hosts.source, settings.hosts.launcher.reason
    record = {
        "source": source,
        "launcher": launcher,
        "notes": list(settings.hosts.notes),
        "hosts": values,
    }
    return View(f"{''.join(rows)}hosts from {source}\ndaemons started by {launcher}\n", record)


def show_variables(plan: Plan, environ: Mapping[str, str], chosen: frozenset[int] | None) -> View:
    """Return the variables that ranks find; `chosen` are those of --ranks, and `environ` is what ddlrun passes on."""
    ranks = _rank_records(plan, environ, frozenset(range(MOST_RANKS)) if chosen is None else chosen)
    variables = plan.printed_variables
    passed_on = sorted(set(plan.exports) - set(variables))
    record = {
        "set": variables,
        "set_by_rank": [word.partition("=")[0] for word in variables.get(OWN, "").split()],
        "passed_on": passed_on,
        "removed": list(plan.removed),
        "ranks": ranks,
    }
    inherited = redact({name: environ[name] for name in passed_on if name in environ})
    text = _render_block("all ranks:", shared_variables(plan))
    text += "".join(_render_block(f"rank {rank['rank']} on {rank['host']}:", rank["variables"]) for rank in ranks)
    if chosen is None and plan.placement.topology.size > MOST_RANKS:
        text += f"the job has {plan.placement.topology.size} ranks: --ranks LIST shows others\n"
    text += _render_block("passed on to all ranks:", inherited)
    return View(text + (f"removed: {' '.join(plan.removed)}\n" if plan.removed else ""), record)


def _rank_records(plan: Plan, environ: Mapping[str, str], chosen: frozenset[int]) -> list[dict[str, Any]]:
    placed = sorted((rank for rank in plan.placement.by_host() if rank.rank in chosen), key=lambda rank: rank.rank)
    return [
        {"rank": rank.rank, "host": rank.host.name, "variables": own_variables(plan, environ, rank)} for rank in placed
    ]


def _render_block(title: str, variables: Mapping[str, str]) -> str:
    """Return a title, and a line for each variable below it."""
    return f"{title}\n" + "".join(f"  {name}={value}\n" for name, value in variables.items())
