"""Who started this process: the communicator of an MPI launch, and the shape and order that the launcher told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.ddl.options import Options, check_size, parse_options
from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, Topology, parse_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpi4py.MPI import Intracomm

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI's mpirun; MPICH's, Intel's
SIGNS = (*SIZES, "PMIX_RANK", "PMI_RANK")


def find_world(environ: Mapping[str, str]) -> Intracomm | None:
    """Return MPI's world where this process is a rank, else None: then MPI is not even loaded.

    Raises InputError if mpi4py loaded another MPI than the launcher's, which would make each process rank 0 of 1.
    """
    if not any(name in environ for name in SIGNS) and "mpi4py.MPI" not in sys.modules:
        return None
    from mpi4py import MPI  # noqa: PLC0415 - 0.3 s, and not everybody has it

    world = MPI.COMM_WORLD
    told = next((environ[name] for name in SIZES if name in environ), str(world.size))
    if told != str(world.size):
        library = MPI.Get_library_version().split(",")[0]
        raise InputError(
            f"started as {told} ranks, but MPI sees {world.size}: mpi4py loaded {library}, which is not the MPI "
            "of the mpirun that started this; set MPI4PY_LIBMPI to that one's libmpi"
        )
    return world


class HostPosition(NamedTuple):
    """The place of a learner among those of its host, and how many hosts there are, as MPI sees them.

    `leaving` are the dimensions in which some learner has a peer on another host, the same on all learners.
    """

    local_rank: int = 0
    local_size: int = 1
    hosts: int = 1
    leaving: str = ""


class LaunchContext(NamedTuple):
    """Options with the topology filled in, and the order of ranks."""

    options: Options
    topology: Topology
    order: RankOrder


def find_shape(options: str | None, size: int, environ: Mapping[str, str], *, part: bool = False) -> LaunchContext:
    """Return what was asked for: by `options`, else DDL_OPTIONS, else the launcher, else one ring of all learners.

    `part`: the learners are some of the job's, so the shape of the whole job says nothing of them. Raises InputError if
    the dimensions' product is not `size`.
    """
    where = "DDL_OPTIONS" if options is None else "init()"
    asked = parse_options(environ.get("DDL_OPTIONS", "") if options is None else options, where)
    topology = None if part and options is None else asked.topology
    if not part and topology is None and "DDLRUN_TOPOLOGY" in environ:
        where, topology = "DDLRUN_TOPOLOGY", parse_topology(environ["DDLRUN_TOPOLOGY"], "DDLRUN_TOPOLOGY")
    topology = topology or Topology((size,))
    check_size(topology, size, where)
    return LaunchContext(asked, topology, _order(environ.get("DDLRUN_RANK_ORDER", "ddl")))


def _order(text: str) -> RankOrder:
    orders = {order.value: order for order in RankOrder}
    if text not in orders:
        raise InputError(f"DDLRUN_RANK_ORDER {text!r}: one of {', '.join(orders)}")
    return orders[text]
