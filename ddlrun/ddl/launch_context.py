"""The launch of this process: the communicator of its job, and the shape and rank order of the job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ddlrun.ddl.options import Options, check_size, parse_options
from ddlrun.ddl.transports.communicators import SingleRank
from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, Topology, ddl_topology, parse_job_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator

WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI's mpirun; MPICH's and Intel's
TRANSPORTS = ("mpi", "tcp")
LAUNCH_VARIABLES = (*WORLD_SIZES, "PMIX_RANK", "PMI_RANK")


def find_transport(environ: Mapping[str, str]) -> str:
    """Return the transport of this process's job: "mpi", "tcp", or "" for a process that runs alone.

    The first of: DDLRUN_DDL_TRANSPORT; TCP in a job of torchrun, whatever started torchrun; MPI in an MPI job; TCP in
    another job with RANK and WORLD_SIZE; MPI if the script has loaded it. Without mpi4py no job with RANK and
    WORLD_SIZE is one of MPI: ddlrun's own process manager sets the variables of MPI for every program.

    Raises InputError if DDLRUN_DDL_TRANSPORT is neither "mpi" nor "tcp".

    >>> find_transport({"OMPI_COMM_WORLD_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2"})
    'mpi'
    >>> find_transport({"RANK": "0", "WORLD_SIZE": "2"})
    'tcp'
    """
    transport = environ.get("DDLRUN_DDL_TRANSPORT", "")
    if transport not in {"", *TRANSPORTS}:
        raise InputError(f"DDLRUN_DDL_TRANSPORT {transport!r}: one of {', '.join(TRANSPORTS)}")
    if transport:
        return transport
    has_mpi = any(name in environ for name in LAUNCH_VARIABLES)
    is_job = "RANK" in environ and environ.get("WORLD_SIZE", "1") != "1"
    if is_job and (not has_mpi or "TORCHELASTIC_USE_AGENT_STORE" in environ or find_spec("mpi4py") is None):
        return "tcp"
    return "mpi" if has_mpi or "mpi4py.MPI" in sys.modules else ""


def find_world(environ: Mapping[str, str]) -> Communicator:
    """Return the communicator of all ranks of the job. In a process that runs alone, do not load MPI.

    Raises InputError if mpi4py loaded an MPI other than the launcher's, which would make each process rank 0 of 1, or
    if a variable of a job without MPI is wrong; LostRankError if a rank of a job without MPI does not arrive.
    """
    transport = find_transport(environ)
    if transport == "tcp":
        from ddlrun.ddl.transports.tcp.world import tcp_world  # noqa: PLC0415 - 50 ms, for jobs without MPI alone

        return tcp_world(environ)
    return _find_mpi_world(environ) if transport else SingleRank()


def adopt(comm: Communicator | Intracomm) -> Communicator:
    """Return a caller's communicator, which may be mpi4py's, with the interface of this package."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    is_foreign = mpi is not None and isinstance(comm, mpi.Intracomm)
    return _mpi_communicator(cast("Intracomm", comm)) if is_foreign else cast("Communicator", comm)


def _find_mpi_world(environ: Mapping[str, str]) -> Communicator:
    from mpi4py import MPI  # noqa: PLC0415 - 1 s, and it need not be installed

    world = _mpi_communicator(MPI.COMM_WORLD)
    launched = read_world_size(environ, str(world.size))
    if launched != str(world.size):
        raise InputError(
            f"started as {launched} ranks, but MPI sees {world.size}: mpi4py loaded {world.library}, which is not the "
            "MPI of the mpirun that started this; set MPI4PY_LIBMPI to that one's libmpi"
        )
    return world


def _mpi_communicator(comm: Intracomm) -> Communicator:
    from ddlrun.ddl.transports.mpi.communicator import MpiCommunicator  # noqa: PLC0415 - 1 s: MPI, which need not be installed

    return MpiCommunicator(comm)


def read_world_size(environ: Mapping[str, str], default: str) -> str:
    """Return the number of ranks that the launcher started, or the default if it does not say."""
    return next((environ[name] for name in WORLD_SIZES if name in environ), default)


@dataclass(frozen=True, slots=True)
class HostPosition:
    """The position of a learner on its host, and the number of hosts, as MPI finds them.

    leaving: the dimensions in which some learner has a peer on another host; the same on all learners.
    """

    local_rank: int = 0
    local_size: int = 1
    hosts: int = 1
    leaving: str = ""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The options, the topology, and the rank order of a job."""

    options: Options
    topology: Topology
    order: RankOrder


def find_context(options: str | None, size: int, environ: Mapping[str, str], *, part: bool = False) -> LaunchContext:
    """Return the launch context of `size` learners.

    The topology is that of `options`, else of DDL_OPTIONS, else of the launcher, else one ring of all learners. With
    `part` the learners are only some of the job's ranks, so the shape of the whole job is ignored.

    Raises InputError if the product of the dimensions is not `size`.
    """
    source = "DDL_OPTIONS" if options is None else "init()"
    parsed = parse_options(environ.get("DDL_OPTIONS", "") if options is None else options, source)
    topology = None if part and options is None else parsed.topology
    if not part and topology is None and "DDLRUN_TOPOLOGY" in environ:
        source = "DDLRUN_TOPOLOGY"
        topology = ddl_topology(parse_job_topology(environ[source], source))
    topology = topology or Topology((size,))
    check_size(topology, size, source)
    return LaunchContext(parsed, topology, parse_order(environ.get("DDLRUN_RANK_ORDER", "ddl")))


def parse_order(text: str) -> RankOrder:
    """Return the rank order that DDLRUN_RANK_ORDER names. Raises InputError."""
    orders = {order.value: order for order in RankOrder}
    if text not in orders:
        raise InputError(f"DDLRUN_RANK_ORDER {text!r}: one of {', '.join(orders)}")
    return orders[text]
