"""A plan as text: the placement of every rank, and the reasons."""

from collections.abc import Iterator, Sequence

from ddlrun.hosts import fold
from ddlrun.machine import Core
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan.plan import Plan
from ddlrun.ranges import find_runs, render_range, render_ranges, render_spaced
from ddlrun.report.table import left_aligned
from ddlrun.topology import Topology
from ddlrun.wording import counted

# More local ranks than this are counted instead of listed.
MOST_ROWS = 16


def render_plan(plan: Plan, command: str, *, full: bool) -> str:
    """Render a plan; `full` adds the reasons and the command."""
    lines = list(_placement_lines(plan.placement, plan.reason))
    if not full:
        lines += (f"note: {note}" for note in placement_notes(plan.placement))
    else:
        lines += [
            f"hosts:      {plan.placement.hosts.source}",
            f"rank order: {plan.placement.order.value}: {plan.order_reason}",
            plan.manager.description,
            f"daemons:    {plan.launcher}",
            f"transport:  {plan.transport.reason}",
            f"network:    {plan.network}",
            *(f"note:       {note}" for note in plan.notes),
            f"run folder: {plan.run_dir.path}",
            f"command:    {command}",
        ]
    return "".join(f"{line}\n" for line in lines)


def _placement_lines(placement: Placement, reason: TopologyReason) -> Iterator[str]:
    topology = placement.topology
    ranks = counted(topology.size, "rank")
    per_host = f", {topology.largest} per host" if isinstance(topology, Topology) else ""
    yield f"{topology}: {ranks} on {placement.hosts}{per_host} ({reason})"
    for indexes, machine, seats in placement.groups():
        names = fold(placement.hosts.names[index] for index in indexes)
        yield f"{names}: {machine} ({machine.source})"
        yield from (f"  {line}" for line in left_aligned([*_rows(placement, indexes, seats)]))


def _rows(
    placement: Placement, indexes: Sequence[int], seats: Sequence[LocalRankPlacement]
) -> Iterator[tuple[str, ...]]:
    gpus, memory = any(seat.gpu for seat in seats), any(seat.memory_nodes for seat in seats)
    optional = [*(["GPU"] if gpus else []), *(["memory of NUMA node"] if memory else [])]
    yield ("local rank", "ranks", "package", "cores", *optional, "threads")
    for seat in seats[:MOST_ROWS]:
        ranks = sorted(placement.topology.rank(index, seat.local_rank, placement.order) for index in indexes)
        packages = sorted({core.package for core in seat.cores})
        gpu = [str(seat.gpu.number) if seat.gpu else "-"] if gpus else []
        nodes = [render_ranges(seat.memory_nodes)] if memory else []
        yield (
            str(seat.local_rank), render_spaced(ranks), ",".join(map(str, packages)),
            render_cores(seat.cores), *gpu, *nodes, str(placement.threads_of(seat)),
        )  # fmt: skip
    if len(seats) > MOST_ROWS:
        yield (f"... {len(seats) - MOST_ROWS} more",)


def render_cores(cores: Sequence[Core]) -> str:
    """Render cores by their index inside their package."""
    runs = find_runs(
        cores, lambda low, high: (low.package, low.index_in_package + 1) == (high.package, high.index_in_package)
    )
    return ",".join(render_range(low.index_in_package, high.index_in_package) for low, high in runs)
