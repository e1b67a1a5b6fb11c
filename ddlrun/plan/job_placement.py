"""The placement of a job: its topology, its rank order and the place of every rank, with reasons."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ddlrun.errors import PlacementError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.managers import ProcessManager
from ddlrun.mapping.lint_findings import LintCode
from ddlrun.mapping.placement import OrderedCores, Placement, place, place_cores
from ddlrun.mapping.rankfile_entries import parse_places
from ddlrun.mapping.rankfile_lint import lint
from ddlrun.mapping.topology_request import TopologyReason, TopologyRequest, choose_topology, unequal_error
from ddlrun.plan.precedence import RANK_ORDER_SOURCES
from ddlrun.plan.settings import Settings, UserRankfile
from ddlrun.topology import JobTopology, RankOrder, Topology, UnequalTopology
from ddlrun.wording import counted

OrderAndReason = tuple[RankOrder, str]


class JobPlacement(NamedTuple):
    """Where every rank goes, why this topology, and why this rank order."""

    placement: Placement
    reason: TopologyReason
    order_reason: str


def place_job(settings: Settings, machines: Mapping[str, Machine], manager: ProcessManager | None) -> JobPlacement:
    """Place every rank on the machines, by host.

    Raises InputError or PlacementError. A user's own rank file is checked for everything that the process
    manager (None: any) would not do as the file says.
    """
    if settings.placement.rankfile is not None:
        dialect = None if manager is None else manager.rankfile_dialect
        return _place_by_rankfile(settings, settings.placement.rankfile, machines, dialect)
    hosts, job = settings.hosts.hosts, settings.job
    topology, reason = choose_topology(job.topology, hosts, machines)
    profile = job.profiles.fitting(topology, None if manager is None else manager.mpi_generation)
    if profile is not None and job.profiles.may_reshape and profile.topology != topology:
        topology, reason = profile.topology, reason._replace(hosts=f"{profile}, instead of {topology}")
    order, order_reason = choose_order(settings, topology)
    placement = place(topology, hosts, machines, order, settings.placement.policy)
    return JobPlacement(placement, reason, order_reason)


def _place_by_rankfile(
    settings: Settings, rankfile: UserRankfile, machines: Mapping[str, Machine], dialect: int | None
) -> JobPlacement:
    hosts, name = settings.hosts.hosts, rankfile.name
    _check_rankfile(settings, rankfile, machines, dialect)
    placed = parse_places(rankfile.text, lambda host: machines[host])
    topology = _rankfile_topology(settings, name, [host for host, _ in placed.values()], machines)
    order = _order_of(topology, hosts, {rank: host for rank, (host, _) in placed.items()})
    if order is None:
        raise PlacementError(f"{name}: {_unknown_order(topology, hosts)}")
    cores = {rank: chosen for rank, (_, chosen) in placed.items()}
    placement = place_cores(topology, hosts, machines, OrderedCores(order, cores), settings.placement.policy)
    return JobPlacement(placement, TopologyReason(f"--rankfile {name}"), f"the order of {name}")


def _check_rankfile(
    settings: Settings, rankfile: UserRankfile, machines: Mapping[str, Machine], dialect: int | None
) -> None:
    """Raise PlacementError with every error of a rank file that matters to a dialect. Ranks may share cores."""
    findings = lint(rankfile.text, machines.get, None, settings.hosts.hosts.names)
    errors = [finding for finding in findings if finding.error and finding.concerns(dialect)]
    if not settings.placement.policy.strict:
        errors = [finding for finding in errors if finding.code is not LintCode.SHARED_CORE]
    if errors:
        raise PlacementError(
            *(
                f"{rankfile.name}{error.location}: {error.message}; {error.effect(dialect)}; {error.remedy}"
                for error in errors
            )
        )


def rankfile_warnings(rankfile: UserRankfile, machines: Mapping[str, Machine], dialect: int | None) -> list[str]:
    """Return the findings of a rank file that are not errors."""
    # The command itself passes the parameter that keeps dotted names.
    return [
        f"{rankfile.name}{finding.location}: {finding.message}; {finding.effect(dialect)}"
        for finding in lint(rankfile.text, machines.get)
        if not finding.error and finding.concerns(dialect) and finding.code is not LintCode.DOTTED_HOST
    ]


def _rankfile_topology(
    settings: Settings, name: str, rank_hosts: Collection[str], machines: Mapping[str, Machine]
) -> JobTopology:
    """Return the requested topology, else the ranks per host; raise PlacementError where the rank file has others."""
    hosts, request, ranks = settings.hosts.hosts, settings.job.topology, len(rank_hosts)
    counts = Counter(rank_hosts)
    local_sizes = [counts[host] for host in hosts.names]
    if not all(local_sizes):
        raise PlacementError(
            f"{name}: no rank is on {hosts.names[local_sizes.index(0)]}; name the hosts with ranks: `-H`"
        )
    if request._replace(gpus=None) == TopologyRequest():
        if len(set(local_sizes)) > 1:
            return UnequalTopology(local_sizes)
        request = TopologyRequest(topology=Topology((local_sizes[0], len(hosts))))
    topology, _ = choose_topology(request, hosts, machines)
    if topology.size != ranks:
        placed = counted(ranks, "rank")
        raise PlacementError(f"{name} places {placed}, topology {topology} has {topology.size}; make them agree")
    return topology


def _order_of(topology: JobTopology, hosts: HostList, host_of: Mapping[int, str]) -> RankOrder | None:
    """Return the rank order that puts each rank on its host; None: neither does."""
    orders = RankOrder if isinstance(topology, Topology) else (RankOrder.HOST,)
    for order in orders:
        if all(
            host_of[rank] == name for index, name in enumerate(hosts.names) for rank in topology.ranks_of(index, order)
        ):
            return order
    return None


def _unknown_order(topology: JobTopology, hosts: HostList) -> str:
    """Return the problem of a rank file whose ranks are in no order, and the remedy."""
    if isinstance(topology, UnequalTopology):
        return (
            f"its ranks are not consecutive on each of {hosts}, in this order; name the hosts in the order of their "
            "ranks (`-H`), or number the ranks of each host consecutively"
        )
    return (
        f"its ranks are neither contiguous on each host nor round robin over {hosts} as {topology}; name the hosts in "
        "their order (`-H`) and the `--topology`"
    )


def choose_order(settings: Settings, topology: JobTopology) -> OrderAndReason:
    """Return the rank order and why: the first source of RANK_ORDER_SOURCES that applies decides.

    Raises InputError where the user asks for what unequal hosts do not have: DDL's order and its dimensions.
    """
    if isinstance(topology, UnequalTopology):
        _refuse_dimensions(settings, topology)
        return RankOrder.HOST, f"contiguous on a host, as the hosts have different numbers of ranks ({topology})"
    choices = (ORDER_CHOICES[source](settings) for source in RANK_ORDER_SOURCES)
    return next(choice for choice in choices if choice is not None)


def _refuse_dimensions(settings: Settings, topology: UnequalTopology) -> None:
    job = settings.job
    options = [job.shape_options] if job.shape_options else []
    options += ["`--rank-order` ddl"] if job.rank_order is RankOrder.DDL else []
    options += [f"`--mode` {job.mode}"] if job.mode is not None else []
    if options:
        raise unequal_error(", ".join(options), topology)


def _requested_order(settings: Settings) -> OrderAndReason | None:
    order = settings.job.rank_order
    return None if order is None else (order, f"--rank-order {order.value}")


def _ddl_order(settings: Settings) -> OrderAndReason | None:
    mode = settings.job.mode
    if mode is None and "ddl" not in settings.job.frameworks:
        return None
    option = "--framework ddl" if mode is None else f"--mode {mode}"
    return RankOrder.DDL, f"{option} asks for DDL, whose grid numbers X slowest"


def _scheduler_order(settings: Settings) -> OrderAndReason | None:
    allocation = settings.hosts.allocation
    if allocation is None or not allocation.cyclic:
        return None
    return RankOrder.DDL, f"{allocation.title} asks for cyclic ranks: a host after the other"


def _contiguous_order(_settings: Settings) -> OrderAndReason:
    return RankOrder.HOST, "contiguous on a host, as flat collectives and device meshes expect"


ORDER_CHOICES: dict[str, Callable[[Settings], OrderAndReason | None]] = {
    "--rank-order": _requested_order,
    "--mode or --framework ddl": _ddl_order,
    "the scheduler's job": _scheduler_order,
    "contiguous on each host": _contiguous_order,
}
