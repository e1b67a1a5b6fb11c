"""Process managers: the programs that start the processes of a job. ddlrun has Open MPI's; plug-ins add others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddlrun.hosts import HostList
from ddlrun.managers.end import EndFinding, ManagerOutput, find_nothing

# The entry points of plug-ins; each is a ProcessManager.
GROUP = "ddlrun.managers"
# The values of --process-manager.
AUTO, OPEN_MPI, OWN, SRUN = "auto", "openmpi", "ddlrun", "srun"
MANAGERS = (AUTO, OPEN_MPI, OWN, SRUN)
OPEN_MPI_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")


class ManagerJob(NamedTuple):
    """A job as its process manager has to start it."""

    ranks: int
    hosts: HostList
    rankfile: str
    """Path of the rank file."""
    hostfile: str
    """Path of the hostfile: a line per host, with its slots."""
    root: bool
    """Whether the process manager is to start as root."""
    ssh: tuple[str, ...]
    """Arguments of ssh."""
    exports: tuple[str, ...]
    """Names of variables in the process manager's environment that are passed on to ranks."""
    extra: tuple[str, ...]
    """The user's own arguments of the process manager."""
    program: tuple[str, ...]
    """The command line of each rank."""
    overload: bool = False
    """Whether ranks share cores."""
    spawns: bool = False
    """Whether the job may start more processes with MPI_Comm_spawn; the hostfile has slots for them."""
    local: frozenset[str] = frozenset()
    """Names of hosts that mean this machine."""
    launcher: tuple[str, ...] = ()
    """The command line of a shell on another host, which reads its script from standard input; the word @host stands
    for the host."""
    works_everywhere: bool = True
    """Whether hosts can start programs on each other by the launcher, as this machine can."""
    rank_hosts: tuple[str, ...] = ()
    """The host of each rank."""
    cpus: tuple[tuple[int, ...], ...] = ()
    """The CPUs of each local rank; empty where they are not known, or where hosts differ."""
    step: tuple[str, ...] = ()
    """The first arguments of srun in a Slurm job over whose hosts ddlrun starts steps; empty elsewhere."""


class ProcessManager(NamedTuple):
    """A program that starts the ranks of a job, as mpirun does.

    It passes on its environment to the ranks, runs until all of them have ended, and ends them at SIGTERM. It need not
    bind them: under a plug-in's process manager, each rank binds itself to the cores of the plan.
    """

    title: str
    """Its name for messages."""
    parse_version: Callable[[str], str | None]
    """Returns the version from the output of `PROGRAM --version`; None where it is that of another program."""
    command: Callable[[str, str, ManagerJob], tuple[str, ...]]
    """Returns the argv that starts a job, from the program's path, its version, and the job."""
    rank_variables: tuple[str, str, str] = OPEN_MPI_RANK_VARIABLES
    """The variables in which each process finds its rank, its local rank and the number of ranks."""
    on_hosts: bool = True
    """Whether the program must be on every host."""
    name: str = ""
    """Its name in messages about a job; empty: that of its program."""
    read_end: Callable[[ManagerOutput], Sequence[EndFinding]] = find_nothing
    """Returns what it has reported of the end of its job."""
    sends_reports: bool = False
    """Whether its standard output is messages of agent/frames.py, instead of text."""
