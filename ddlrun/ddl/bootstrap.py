"""The start of a learner: its grid, its position on the host and its options."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, CONNECTIONS, ONE_HOST, TCP_DEPTH
from ddlrun.ddl.algorithm_selection import make_selector
from ddlrun.ddl.communicators import SingleRank
from ddlrun.ddl.dimensions import Grid
from ddlrun.ddl.launch_context import HostPosition, adopt, find_world
from ddlrun.ddl.learner import Learner
from ddlrun.ddl.order_check import describe_mismatch
from ddlrun.ddl.start_settings import StartRequest, agree_on_settings
from ddlrun.ddl.unequal_links import find_links, group_hosts
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.algorithm_selection import AlgorithmSelector
    from ddlrun.ddl.communicators import Communicator
    from ddlrun.ddl.options import Options
    from ddlrun.ddl.unequal_links import HostGroups


def start_learner(
    options: str | None, comm: Communicator | Intracomm | None, tuning: str | None, environ: Mapping[str, str]
) -> Learner:
    """Return the learner of this process; see `ddl.init`. All ranks call it together."""
    world = find_world(environ) if comm is None else adopt(comm)
    part = comm is not None and world.job_size != world.size
    if world.size == 1:
        world = SingleRank()
    settings = agree_on_settings(StartRequest(options, tuning, world.size, part), world, environ)
    context = settings.context
    over_tcp = world.size > 1 and world.collectives is None
    if context.options.mode == "m" and over_tcp:
        raise InputError(
            "-mode m: the collectives of MPI need an MPI job, but this one runs over TCP; use mode r or p"
        )
    grid = Grid(context.topology, context.order, world)
    host, hosts = _find_hosts(world, grid)
    default = ONE_HOST if host.hosts == 1 else BETWEEN_HOSTS
    sizes = settings.tuning(default._replace(depth=TCP_DEPTH) if over_tcp else default)
    # A chunk uses one connection.
    sizes = sizes._replace(depth=max(sizes.depth, sizes.connections)) if over_tcp else sizes._replace(connections=1)
    selector = make_selector(grid, context.options, sizes, environ)
    if over_tcp:
        several = CONNECTIONS if host.hosts > 1 and not settings.sets("connections") else ()
        local_ranks = world.size if host.hosts == 1 else 0
        selector = replace(selector, grows=not settings.sets("chunk"), local_ranks=local_ranks, connections=several)
        if host.leaving and grid.axes[0] not in host.leaving:
            selector = replace(selector, host_ranks=grid.topology.ranks_per_host)
    if world.size > 1 and not _is_instrumented(context.options):
        links = find_links(world, hosts, environ)
        monitored = hosts if selector.cache is not None and links.are_unknown else None
        selector = replace(selector, layout=links.layout, monitored=monitored)
    learner = _make_learner(grid, selector, host, environ)
    if grid.rank == 0:
        if mismatch := describe_mismatch(context, hosts.ranks):
            sys.stderr.write(f"ddlrun.ddl: {mismatch}\n")
        if context.options.dbg_level:
            sys.stderr.writelines(f"ddlrun.ddl: {note}\n" for note in _notes(learner))
    return learner


def _make_learner(grid: Grid, selector: AlgorithmSelector, host: HostPosition, environ: Mapping[str, str]) -> Learner:
    if not _is_instrumented(selector.options):
        return Learner(grid, selector, host)
    from ddlrun.ddl.monitor.instrumented_learner import InstrumentedLearner  # noqa: PLC0415 - 20 ms, for -dump_iter and -rebind_iter alone

    return InstrumentedLearner(grid, selector, host, environ)


def _is_instrumented(options: Options) -> bool:
    """Return True if iterations are reported, by dimension: then all blocks are equal."""
    return bool(options.dump_iter or options.rebind_iter)


def _find_hosts(world: Communicator, grid: Grid) -> tuple[HostPosition, HostGroups]:
    """Return this learner's position on its host, and the hosts of the job."""
    local = world.split_hosts()
    local_ranks = set(local.allgather(world.rank))
    # The dimensions in which this learner has a peer on another host.
    leaving = "".join(axis for axis in grid.axes if not local_ranks.issuperset(grid.peers(axis)))
    rows = world.allgather((min(local_ranks), leaving))
    leaving_anywhere = {axis for _, axes in rows for axis in axes}
    hosts = group_hosts(grid, [leader for leader, _ in rows])
    position = HostPosition(
        local.rank,
        local.size,
        hosts=len(hosts.ranks),
        leaving="".join(axis for axis in grid.axes if axis in leaving_anywhere),
    )
    local.Free()
    return position, hosts


def _notes(learner: Learner) -> Iterator[str]:
    if learner.reducer.schedules.layout is not None:
        sizes = "+".join(str(len(hosts)) for hosts in learner.reducer.schedules.layout.shares.hosts)
        yield f"blocks are sized by the links; hosts by rack: {sizes}"
    tuning = ", ".join(f"{name} {value}" for name, value in learner.tuning._asdict().items())
    yield f"mode {learner.options.mode}, {learner.grid.topology} in {learner.grid.order.value} order, {tuning}"
