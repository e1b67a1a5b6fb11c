"""The start of a learner: its grid, its position on the host and its options."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING

from ddlrun.ddl.group.dimensions import Grid
from ddlrun.ddl.group.engine import Engine
from ddlrun.ddl.group.group import Group
from ddlrun.ddl.group.order_check import describe_mismatch
from ddlrun.ddl.group.settings import agree_on_settings, read_settings
from ddlrun.ddl.launch_context import HostPosition, adopt, find_world
from ddlrun.ddl.learner import Learner
from ddlrun.ddl.schedules.cache import ScheduleCache
from ddlrun.ddl.selection.algorithm_selection import Selection, find_sizes, load_cache
from ddlrun.ddl.selection.late_host_monitor import make_monitors
from ddlrun.ddl.selection.unequal_links import RACKS, HostGroups, with_racks
from ddlrun.ddl.transports.communicators import SingleRank
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.group.settings import StartSettings
    from ddlrun.ddl.launch_context import Options
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.transports.communicators import Communicator


def start_learner(
    options: str | None, comm: Communicator | Intracomm | None, tuning: str | None, environ: Mapping[str, str]
) -> Learner:
    """Return the learner of this process; see `ddl.init`. All ranks call it together."""
    world = find_world(environ) if comm is None else adopt(comm)
    part = comm is not None and world.job_size != world.size
    if world.size == 1:
        world = SingleRank()
    read = partial(read_settings, options, tuning, world.size, environ, part=part)
    settings = agree_on_settings(read, world, environ)
    context = settings.context
    if context.options.mode == "m" and world.size > 1 and world.collectives is None:
        raise InputError("-mode m: the collectives of MPI need an MPI job, but this one runs over TCP; use mode r or p")
    grid = Grid(context.topology, context.order, world)
    host, hosts = _find_hosts(world, grid, environ)
    measures = world.size > 1 and not _is_instrumented(context.options)
    layout = settings.group.layout(hosts) if measures else None
    selection = make_selection(grid, settings, host, layout, environ)
    learner = _make_learner(grid, selection, host, environ)
    if measures and selection.explores and not settings.group.links:
        learner.group.monitors += make_monitors(learner.group, world, hosts, grid.host_place(hosts))
    if grid.rank == 0:
        if mismatch := describe_mismatch(context, hosts.ranks):
            sys.stderr.write(f"ddlrun.ddl: {mismatch}\n")
        if context.options.dbg_level:
            sys.stderr.writelines(f"ddlrun.ddl: {note}\n" for note in _notes(learner))
    return learner


def make_selection(
    grid: Grid, settings: StartSettings, host: HostPosition, layout: HostLayout | None, environ: Mapping[str, str]
) -> Selection:
    """Return the selection of a grid. All ranks call it together."""
    comm, options, topology = grid.members(grid.axes), settings.context.options, grid.topology
    inside = host.leaving and grid.axes[0] not in host.leaving
    sizes = find_sizes(comm, settings.group, hosts=host.hosts, host_ranks=topology.ranks_per_host if inside else 1)
    explores = comm.size > 1 and options.mode == "p" and sizes.tuning.explore > 0
    load = partial(load_cache, comm, environ, topology, grid.order, sizes.tuning) if explores else None
    return Selection(options, sizes, learners=topology.dims, comm=comm, load=load, layout=layout)


def make_group(grid: Grid, selection: Selection) -> Group:
    """Return the group of a grid. All ranks call it together."""
    engine = Engine(grid.base.make_transport(), grid.rank)
    schedules = ScheduleCache(grid.dimensions(selection.options.mode), grid.rank, selection.layout)
    return Group(grid.members(grid.axes), engine, schedules=schedules, selection=selection, grid=grid)


def _make_learner(grid: Grid, selection: Selection, host: HostPosition, environ: Mapping[str, str]) -> Learner:
    group = make_group(grid, selection)
    if not _is_instrumented(selection.options):
        return Learner(grid, group, host)
    from ddlrun.ddl.monitor.instrumented_learner import InstrumentedLearner  # noqa: PLC0415 - 20 ms, for -dump_iter and -rebind_iter alone

    return InstrumentedLearner(grid, group, host, environ)


def _is_instrumented(options: Options) -> bool:
    """Return True if iterations are reported, by dimension: then all blocks are equal."""
    return bool(options.dump_iter or options.rebind_iter)


def _find_hosts(world: Communicator, grid: Grid, environ: Mapping[str, str]) -> tuple[HostPosition, HostGroups]:
    """Return this learner's position on its host, and the hosts of the job."""
    local = world.split_hosts()
    ranks = grid.group_hosts(world.allgather(min(local.allgather(world.rank))))
    x, y, *others = grid.topology.dims
    is_grid = len(ranks) == grid.topology.hosts and all(len(of_host) == x for of_host in ranks)
    racks = world.bcast({RACKS: environ.get(RACKS, "")})
    # Without others, the racks are those of the grid if its dimensions are those of the hosts, else there is one.
    hosts = with_racks(HostGroups(ranks, (y,) * math.prod(others) if is_grid else (len(ranks),)), racks)
    position = HostPosition(local.rank, local.size, hosts=len(ranks), leaving=grid.leaving(hosts))
    local.Free()
    return position, hosts


def _notes(learner: Learner) -> Iterator[str]:
    if learner.reducer.schedules.layout is not None:
        sizes = "+".join(str(len(hosts)) for hosts in learner.reducer.schedules.layout.shares.hosts)
        yield f"blocks are sized by the links; hosts by rack: {sizes}"
    tuning = ", ".join(f"{name} {value}" for name, value in learner.tuning._asdict().items())
    yield f"mode {learner.options.mode}, {learner.grid.topology} in {learner.grid.order.value} order, {tuning}"
