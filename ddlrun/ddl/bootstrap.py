"""The start of a learner: who the others are, what was asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST
from ddlrun.ddl.algorithm_selection import make_choice
from ddlrun.ddl.dimensions import Grid
from ddlrun.ddl.launch_context import SIZES, HostPosition, find_shape, find_world
from ddlrun.ddl.learner import Learner
from ddlrun.ddl.tuning_parameters import parse_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.algorithm_selection import AlgorithmSelector
    from ddlrun.ddl.options import Options


def begin(options: str | None, comm: Intracomm | None, tuning: str | None, environ: Mapping[str, str]) -> Learner:
    """Make the learner that this process is."""
    world = comm if comm is not None else find_world(environ)
    if world is not None and world.size == 1:
        world = None
    size = 1 if world is None else world.size
    told = next((environ[name] for name in SIZES if name in environ), str(size))
    asked, topology, order = find_shape(options, size, environ, part=comm is not None and told != str(comm.size))
    grid = Grid(topology, order, world)
    host = HostPosition() if world is None else _host(world, grid)
    text, where = (environ.get("DDLRUN_DDL_TUNING", ""), "DDLRUN_DDL_TUNING") if tuning is None else (tuning, "tuning")
    sizes = parse_tuning(text, ONE_HOST if host.hosts == 1 else BETWEEN_HOSTS, where)
    flat = None if world is None else grid.communicator(grid.axes)
    learner = _learner(grid, make_choice(grid, asked, sizes, flat, environ), host, environ)
    if grid.rank == 0:
        sys.stderr.writelines(f"ddlrun.ddl: {note}\n" for note in _notes(learner, asked))
    return learner


def _learner(grid: Grid, choice: AlgorithmSelector, host: HostPosition, environ: Mapping[str, str]) -> Learner:
    if not (choice.options.dump_iter or choice.options.rebind_iter):
        return Learner(grid, choice, host)
    from ddlrun.ddl.monitor.instrumented_learner import InstrumentedLearner  # noqa: PLC0415 - for those who ask for it

    return InstrumentedLearner(grid, choice, host, environ)


def _host(world: Intracomm, grid: Grid) -> HostPosition:
    from mpi4py import MPI  # noqa: PLC0415 - it is loaded

    local = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    here = set(local.allgather(world.rank))
    leaving = world.allreduce(
        sum(1 << at for at, axis in enumerate(grid.axes) if not here.issuperset(grid.peers(axis))), MPI.BOR
    )
    axes = "".join(axis for at, axis in enumerate(grid.axes) if leaving >> at & 1)
    place = HostPosition(local.rank, local.size, world.allreduce(int(local.rank == 0)), axes)
    local.Free()
    return place


def _notes(learner: Learner, asked: Options) -> Iterator[str]:
    across = learner.grid.topology.accelerators
    if asked.dbg_level and learner.host.local_size % across:
        yield f"X is {across}, but this host has {learner.host.local_size} learners: dimension X crosses hosts"
    if asked.dbg_level:
        tuning = ", ".join(f"{name} {value}" for name, value in learner.tuning._asdict().items())
        yield f"mode {asked.mode}, {learner.grid.topology} in {learner.grid.order.value} order, {tuning}"
