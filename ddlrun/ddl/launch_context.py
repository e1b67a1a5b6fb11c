"""The launch of this process: its DDL string, the communicator of its job, and the job's shape and rank order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ddlrun.ddl.transports.communicators import SingleRank
from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, Topology, ddl_topology, parse_job_topology, parse_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator

MODES = {
    "b": "NCCL, pipelined by us, else ring",
    "n": "NCCL, else ring",
    "r": "ring",
    "m": "MPI's own reduce_scatter and allgatherv",
    "c": "recursive halving and doubling",
    "p": "explore: the best for each dimension",
}
# Option -> its field, the values allowed (None: any), its meaning.
NUMBERS = {
    "-dump_iter": ("dump_iter", None, "report every N iterations, 0: never"),
    "-dev_sync": ("dev_sync", (0, 1, 2), "synchronise the device never, at the start, at start and end"),
    "-rebind_iter": ("rebind_iter", None, "look for slow learners every N iterations, 0: never"),
    "-dbg_level": ("dbg_level", (0, 1, 2), "say nothing, check and say what is chosen, say all"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a DDL string. `topology` None: the launcher's, else one ring of all learners."""

    mode: str = "r"
    topology: Topology | None = None
    dump_iter: int = 0
    dev_sync: int = 0
    rebind_iter: int = 0
    dbg_level: int = 0


def parse_options(text: str, where: str = "DDL_OPTIONS") -> Options:
    """Parse a DDL string; an option that is given twice has its last value. `where` names the source in errors.

    Raises InputError with all problems: an unknown option or letter, a value that is missing or wrong.

    >>> parse_options("-mode r:4x2x3 -dump_iter 100").topology
    Topology(dims=(4, 2, 3))
    """
    words = text.split()
    options, problems = Options(), list[str]()
    while words:
        name = words.pop(0)
        reader = _reader(name)
        if reader is None:
            problems.append(f"{where} {text!r}: unknown option {name!r}; {_allowed()}")
        elif not words or _reader(words[0]) is not None:
            problems.append(f"{where} {text!r}: {name} has no value; {_allowed()}")
        else:
            try:
                options = reader(options, name, words.pop(0), where)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)
    return options


def check_size(topology: Topology, size: int, where: str) -> None:
    """Raise InputError unless the product of the dimensions is the number of ranks."""
    if topology.size != size:
        raise InputError(
            f"{where} {str(topology)!r}: invalid dim size: {' x '.join(map(str, topology.dims))} = {topology.size} "
            f"learners, but {size} {'rank runs' if size == 1 else 'ranks run'}; the product must be {size}"
        )


_Reader = Callable[[Options, str, str, str], Options]


def _reader(name: str) -> _Reader | None:
    return _mode if name == "-mode" else _number if name in NUMBERS else None


def _mode(options: Options, _name: str, value: str, where: str) -> Options:
    letter, colon, shape = value.partition(":")
    if letter not in MODES:
        letters = ", ".join(f"{key} ({meaning})" for key, meaning in MODES.items())
        raise InputError(f"{where}: -mode {value!r}: unknown letter {letter!r}; one of {letters}, then :XxYxZ")
    return replace(options, mode=letter, topology=parse_topology(shape, f"{where}: -mode") if colon else None)


def _number(options: Options, name: str, value: str, where: str) -> Options:
    field, values, meaning = NUMBERS[name]
    if not value.isascii() or not value.isdigit() or (values is not None and int(value) not in values):
        allowed = "a number from 0 on" if values is None else ", ".join(map(str, values))
        raise InputError(f"{where}: {name} {value!r} is not {'' if values is None else 'one of '}{allowed}: {meaning}")
    return Options(**{**asdict(options), field: int(value)})


def _allowed() -> str:
    numbers = (f"{name} {'|'.join(map(str, values)) if values else 'N'}" for name, (_, values, _) in NUMBERS.items())
    return f"known are -mode {'|'.join(MODES)}:XxYxZ, {', '.join(numbers)}"


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
    launched = next((environ[name] for name in WORLD_SIZES if name in environ), str(world.size))
    if launched != str(world.size):
        raise InputError(
            f"started as {launched} ranks, but MPI sees {world.size}: mpi4py loaded {world.library}, which is not the "
            "MPI of the mpirun that started this; set MPI4PY_LIBMPI to that one's libmpi"
        )
    return world


def _mpi_communicator(comm: Intracomm) -> Communicator:
    from ddlrun.ddl.transports.mpi.communicator import MpiCommunicator  # noqa: PLC0415 - 1 s: MPI, which need not be installed

    return MpiCommunicator(comm)


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
