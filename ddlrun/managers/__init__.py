"""Process managers: the programs that start the processes of a job. ddlrun has three; plug-ins add others."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.managers.end import EndFinding, ManagerOutput
from ddlrun.remote.probe import ProbeTarget
from ddlrun.remote.processes import FinishedProcess
from ddlrun.schedulers import Allocation

# The entry points of plug-ins; each is a class of ProcessManager.
GROUP = "ddlrun.managers"
# The values of --process-manager.
AUTO, OPEN_MPI, OWN, SRUN = "auto", "openmpi", "ddlrun", "srun"
MANAGERS = (AUTO, OPEN_MPI, OWN, SRUN)


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
    rank_hosts: tuple[str, ...] = ()
    """The host of each rank."""
    cpus: tuple[tuple[int, ...], ...] = ()
    """The CPUs of each local rank; empty where they are not known, or where hosts differ."""
    step: tuple[str, ...] = ()
    """The first arguments of srun in a Slurm job over whose hosts ddlrun starts steps; empty elsewhere."""


class DaemonRequest(NamedTuple):
    """The daemons that a process manager is to start."""

    launcher: str
    """The launcher that starts them: see agent.LAUNCHERS."""
    words: Sequence[str]
    """The words of the launcher's command."""
    slots: int
    """The most ranks that a host has."""
    job: Allocation | None = None
    """The job that ddlrun runs in."""
    alone: bool = False
    """Whether all ranks are on this host, so that there are no daemons."""


class TransportRequest(NamedTuple):
    """The facts on which the choice of MPI's transport depends."""

    hosts: HostList
    machines: Sequence[Machine]
    tcp: bool
    """--tcp."""
    arguments: Sequence[str]
    """The user's own arguments of the process manager."""
    environ: Mapping[str, str]
    files: Mapping[str, str]
    """Path -> text of the files in which a user or a site sets MCA parameters."""


class TransportChoice(NamedTuple):
    """The variables that choose MPI's transport, and why; without variables, the choice is left to MPI."""

    variables: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessManager(ABC):
    """The program that starts the ranks of a job, as mpirun does: where it is, and why this one was chosen.

    It passes on its environment to the ranks, runs until all of them have ended, and ends them at SIGTERM. The
    defaults suit a plug-in's program.
    """

    title: ClassVar[str]
    """The name of its kind for messages."""
    rank_variables: ClassVar[tuple[str, str, str]]
    """The variables in which each process finds its rank, its local rank and the number of ranks."""
    pmi: ClassVar[str] = ""
    """The interface by which ranks find each other: pmi1, pmix3, pmix5, or slurm for that of --mpi; empty: unknown."""
    needs: ClassVar[frozenset[str]] = frozenset({"mpi"})
    """The checks of what hosts must have: "mpi" for the program and its daemon, "agent" for ddlrun's agent."""
    private: ClassVar[tuple[str, ...]] = ()
    """The beginnings of variables that are for the process manager alone, not for the ranks."""
    mpi_library: ClassVar[str] = ""
    """The file name of the MPI library that belongs to it; empty: there is none."""
    refuses_root: ClassVar[bool] = False
    """Whether root cannot start it unless somebody allows that."""
    spawns: ClassVar[bool] = False
    """Whether a job may start more processes with MPI_Comm_spawn."""
    overload_variables: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The variables of ranks that share cores because there are too few."""
    places_spawned: ClassVar[bool] = False
    """Whether further lines of the rank file place the processes of MPI_Comm_spawn."""
    spawn_warning: ClassVar[str] = ""
    """What may go wrong with MPI_Comm_spawn over several hosts."""
    rankfile_dialect: ClassVar[int | None] = None
    """The major version of Open MPI whose rank files it reads; None: it reads none, or those that all versions read."""
    keeps_path: ClassVar[bool] = False
    """Whether ranks inherit its PATH."""
    gives_no_input: ClassVar[bool] = False
    """Whether the standard input of ranks on other hosts is empty."""
    needs_one_address: ClassVar[bool] = False
    """Whether ranks may fail where an interface has several IPv4 addresses."""
    hierarchical: ClassVar[Mapping[str, str] | None] = None
    """The variables that switch on its MPI's hierarchical allreduce; empty: it is on; None: it has none."""
    marks_daemons: ClassVar[bool] = False
    """Whether its daemons have the run's name in their environment, so that they are ended like ranks."""
    signals_keepers: ClassVar[bool] = False
    """Whether its daemons signal the keepers only once it ends itself."""
    hangs_on_early_sigterm: ClassVar[bool] = False
    """Whether SIGTERM while it starts its daemons leaves it waiting, even once all ranks have ended."""
    most_argument_bytes: ClassVar[int | None] = None
    """The longest command line of a program that ranks can get; the arguments of longer ones travel in variables."""

    files_per_rank: ClassVar[int] = 0
    """The files that it opens for each rank of its own host; 0: unknown."""
    uses_agents: ClassVar[bool] = False
    """Whether ddlrun's own agents start the ranks; its command is that of this host's."""

    path: str
    version: str
    reason: str
    """Why this program was chosen."""
    warning: str = ""
    """What the user should know about the choice."""
    is_untested: bool = False
    """Whether it is newer than any version that was tested, so that ranks compare their places with the plan."""

    @staticmethod
    @abstractmethod
    def parse_version(text: str) -> str | None:
        """Return the version from the output of `PROGRAM --version`; None where it is that of another program."""

    @abstractmethod
    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv that starts a job. Raises PreflightError where it cannot take the job."""

    def __str__(self) -> str:
        return f"{self.title} {self.version} ({self.path})"

    @property
    def name(self) -> str:
        """Its name in messages about a job."""
        return os.path.basename(self.path)

    @property
    def description(self) -> str:
        """Its line in the full plan."""
        return f"{self.name + ':':<11} {self.path} ({self.title} {self.version}): {self.reason}"

    @property
    def daemon(self) -> str:
        """The program that must be on every host."""
        return os.path.basename(self.path)

    @property
    def mpi_generation(self) -> int | None:
        """The number that distinguishes measurements with its MPI from those with others; None: it brings no MPI."""
        return None

    def counts_by_hwloc_2_0(self) -> bool:
        """Check if it numbers cores by hwloc 2.0."""
        return False

    def find_library(self) -> str | None:
        """Return the path of its MPI library; None where none is found."""
        return None

    def finds_host(self, _name: str, _hostname: str, _names: Sequence[str]) -> bool:
        """Check if it finds the host that is listed by one name of the job's names, and calls itself by another."""
        return True

    def find_obstacle(self, _machine: Machine) -> str | None:
        """Return the reason why it cannot start ranks on a machine; None: it can."""
        return None

    def binds_ranks(self, *, spawns: bool) -> bool:
        """Check if it binds ranks; otherwise they bind themselves. `spawns`: the job may start more processes."""
        del spawns
        return False

    def choose_transport(self, _request: TransportRequest) -> TransportChoice:
        """Return the transport of MPI."""
        return TransportChoice((), f"left to {self.title}")

    def export_options(self, _names: Iterable[str]) -> tuple[str, ...]:
        """Return the options that pass on variables to the ranks."""
        return ()

    def daemon_variables(self, _request: DaemonRequest, _environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make it start its daemons by the job's launcher."""
        return {}

    def relay_variables(self, _words: Sequence[str], _hosts: int, /) -> dict[str, str]:
        """Return the variables with which it starts a program in place of each ssh client; empty: it starts none.

        The given words start the program. Behind them it has the arguments of ssh.
        """
        return {}

    def find_relay_obstacle(self, _words: Sequence[str], _environ: Mapping[str, str], /) -> str | None:
        """Return the reason why it cannot start a program in place of each ssh client; None: it can."""
        return None

    def network_variables(self, _kind: str, _value: str) -> dict[str, str]:
        """Return the variables that keep its daemons to a network; `kind` is "include" or "exclude"."""
        return {}

    def keepalive_variables(self, _heartbeat: float) -> dict[str, str]:
        """Return the variables with which a daemon that is cut off ends after about twice the heartbeat."""
        return {}

    def session_variables(self, _environ: Mapping[str, str], *, local: bool, spawns: bool) -> tuple[str, ...]:
        """Return the variables that give it, but not its daemons on other hosts, a folder of its own for its session.

        `local`: all ranks are on this host; `spawns`: the job may start more processes.
        """
        del local, spawns
        return ()

    def find_missing_daemons(self, _session: int, _host_names: Sequence[str], /) -> list[str]:
        """Return the hosts from which no daemon has connected to it, which is the leader of a session."""
        return []

    def end_daemons(
        self, _folders: Mapping[str, str], _session_folder: str, _reach: ProbeTarget, /
    ) -> Mapping[str, FinishedProcess]:
        """End the daemons that are left on hosts, and remove their session folders; return replies of failed hosts."""
        return {}

    def read_end(self, _output: ManagerOutput, /) -> Sequence[EndFinding]:
        """Return its findings about the end of its job."""
        return ()
