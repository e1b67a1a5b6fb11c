"""Open MPI's mpirun, of each of its dialects."""

import math
import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.environment.open_mpi import MCA, RANK_VARIABLES
from ddlrun.errors import PreflightError
from ddlrun.machine import Machine, MachineNoteCode
from ddlrun.managers import DaemonRequest, ManagerJob, ProcessManager, TransportChoice, TransportRequest
from ddlrun.managers.openmpi.daemon_variables import DaemonStart, daemon_variables, relay_variables
from ddlrun.managers.openmpi.daemons import end_daemons
from ddlrun.managers.openmpi.end import read_end
from ddlrun.managers.openmpi.installation import find_mpi_library, read_mca_files
from ddlrun.managers.openmpi.missing_daemons import find_missing_daemons
from ddlrun.managers.openmpi.transport import choose_transport

# Variables of a user or a container image that map or bind ranks differently from the rank file. Open MPI 4.1
# stops at the first of them ("Conflicting directives"), and with hwthreads_as_cpus and rank_file_physical it counts
# other units in the rank file. 5.0 leaves ranks unbound for a binding policy, and stops for a list of CPUs without a
# rank's.
OVERRULING = (
    "OMPI_MCA_rmaps_base_mapping_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_use_hwthreads_as_cpus",
    "OMPI_MCA_rmaps_rank_file_physical",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "PRTE_MCA_hwloc_default_binding_policy",
    "PRTE_MCA_bindto",
    "PRTE_MCA_bind_to",
    "PRTE_MCA_hwloc_default_cpu_list",
    "LSB_AFFINITY_HOSTFILE",  # from which Open MPI takes LSF's own mapping and binding
)
KEEPALIVE_PROBES = 3
LONGEST_KEEPALIVE = 32767  # the kernel's limit


class OpenMpi(ProcessManager):
    """Open MPI's mpirun."""

    title = "Open MPI"
    rank_variables = RANK_VARIABLES
    private = ("PRTE_MCA_", "SLURM_", "OMPI_MCA_plm_", "OMPI_MCA_ras")
    mpi_library = "libmpi.so.40"
    refuses_root = True
    spawns = True
    # It joins all arguments in one variable of each rank, for which Linux takes 128 KiB.
    most_argument_bytes = MOST_CHARACTERS
    # Ranks that wait would keep others off their core: without it, 200 barriers of 6 ranks on 2 cores took 7 s, with it
    # 3 ms. mpirun sets it for more ranks than slots, and the hostfile has enough slots.
    overload_variables: ClassVar[Mapping[str, str]] = {f"{MCA}mpi_yield_when_idle": "1"}
    name = "mpirun"  # it has other names, too
    find_missing_daemons = staticmethod(find_missing_daemons)
    end_daemons = staticmethod(end_daemons)
    read_end = staticmethod(read_end)

    @staticmethod
    def parse_version(text: str) -> str | None:
        """Return the version from the output of `mpirun --version`; None for another program.

        >>> OpenMpi.parse_version("mpirun (Open MPI) 5.0.11")
        '5.0.11'
        """
        match = re.search(r"\(Open MPI\) (\d+\.\d+\S*)", text)
        return match[1] if match else None

    # Options and names in which versions differ; {} stands for the value of an option.
    rankfile: ClassVar[tuple[str, ...]]
    keep_names: ClassVar[tuple[str, ...]]
    ssh_args: ClassVar[tuple[str, ...]]
    one_host: ClassVar[tuple[str, ...]]
    spawning: ClassVar[tuple[str, ...]]
    """The rank file of a job over several hosts that may start more processes."""
    spawning_on_one_host: ClassVar[tuple[str, ...]]
    """The same on one host. Processes that are about to end do not count there."""
    daemons: ClassVar[tuple[str, ...]]
    """The names that its daemon has, depending on how it was built."""
    daemon_start: ClassVar[DaemonStart]
    session_folders: ClassVar[tuple[str, ...]]
    """The variables with the place of session folders: on all hosts, and on its own host alone if there is one."""
    keepalive: ClassVar[str]
    """The beginning of the variables of TCP keepalive between it and its daemons."""
    networks: ClassVar[str]
    """The variable with the networks of daemons, without "include" or "exclude"."""
    takes_networks: ClassVar[bool]
    """Whether it takes more than one of them."""
    btl: ClassVar[str]
    """The components for TCP between hosts and shared memory inside of them."""
    binds_spawned: ClassVar[bool]
    """Whether it binds the processes of MPI_Comm_spawn like ranks, and stops where no core is free."""
    needs_cores: ClassVar[bool]
    """Whether it cannot count cores where hwloc finds none."""
    brings_hwloc_2_0: ClassVar[bool]
    """Whether it brings hwloc 2.0, if it is not built with that of the distribution."""
    stops_at_folders: ClassVar[bool]
    """Whether processes stop for which a session folder of mpirun's host is set; keepers unset it for ranks."""

    @property
    def daemon(self) -> str:
        """Its daemon, which must be on every host."""
        folder = os.path.dirname(self.path)
        return next((name for name in self.daemons if os.path.exists(f"{folder}/{name}")), self.daemons[0])

    @property
    def mpi_generation(self) -> int:
        """Its major version."""
        return major(self.version)

    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv that starts a job. Raises PreflightError on a path that Open MPI cannot take."""
        _check_paths(job)
        keep = self.keep_names if self.needs_whole_names(job.hosts.names) else ()
        return (
            self.path,
            *(["--allow-run-as-root"] if job.root else []),
            "-np",
            str(job.ranks),
            "--hostfile",
            job.hostfile,
            *_fill(self._rankfile_words(job), job.rankfile),
            # 5.0 refuses shared cores otherwise.
            *(("--bind-to", "core:overload-allowed") if job.overload and not job.spawns else ()),
            *keep,
            *(_fill(self.ssh_args, " ".join(job.ssh)) if job.ssh else ()),
            *(self.one_host if job.hosts.names == ("localhost",) else ()),
            *self.export_options(job.exports),
            *job.extra,
            *job.program,
        )

    def needs_whole_names(self, names: Sequence[str]) -> bool:
        """Check if it contacts or takes wrong hosts unless it keeps whole names, which it cuts at the first dot."""
        return any("." in name for name in names)

    def _rankfile_words(self, job: ManagerJob) -> tuple[str, ...]:
        if not job.spawns:
            return self.rankfile
        return self.spawning if len(job.hosts) > 1 else self.spawning_on_one_host

    def counts_by_hwloc_2_0(self) -> bool:
        """Check if it numbers cores by the hwloc 2.0 that Open MPI 4 brings.

        Distributions build Open MPI 4 with an hwloc of their own, which numbers cores as that of Open MPI 5 does.
        """
        library = self.find_library() if self.brings_hwloc_2_0 else None
        if library is None:
            return False
        with open(library.replace("libmpi.so", "libopen-pal.so"), "rb") as file:
            return b"hwloc201" in file.read()

    def find_library(self) -> str | None:
        """Return the path of its libmpi; None where none is found."""
        return find_mpi_library(self.path)

    def find_obstacle(self, machine: Machine) -> str | None:
        """Return the reason why it cannot count the cores of a machine, and the remedy; None: it can."""
        if machine.cores_uncounted:
            return f"{MachineNoteCode.CORES_UNCOUNTED.value}; take `--process-manager` ddlrun"
        if machine.cores_are_threads and self.needs_cores:
            return f"{MachineNoteCode.CORES_ARE_THREADS.value}; take Open MPI 4.1 (`--mpirun`)"
        return None

    def binds_ranks(self, *, spawns: bool) -> bool:
        """Check if it binds the ranks of a job, which may start more processes."""
        return not (spawns and self.binds_spawned)

    def choose_transport(self, request: TransportRequest) -> TransportChoice:
        """Return the transport without components that start slowly, where the job cannot need them."""
        return choose_transport(request, self.btl)

    def export_options(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the options that pass on variables to the ranks."""
        return tuple(word for name in names for word in ("-x", name))

    def daemon_variables(self, request: DaemonRequest, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make it start its daemons by the job's launcher."""
        return daemon_variables(request, self.daemon_start, environ)

    def relay_variables(self, words: Sequence[str], hosts: int) -> dict[str, str]:
        """Return the variables with which it starts a program in place of each ssh client."""
        return relay_variables(self.daemon_start, words, hosts)

    def find_relay_obstacle(self, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
        """Return the reason why it cannot start a program in place of each ssh client; None: it can."""
        name = self.daemon_start.agent
        if name in environ:
            return f"{name} is set"
        for path, text in read_mca_files(self.path, environ).items():
            if name.partition("MCA_")[2] in re.findall(r"(?m)^\s*(\w+)", text):
                return f"{path} names an agent"
        split = next((word for word in words if set(word) & set(" :,")), None)
        return None if split is None else f"it would split {split!r}"

    def network_variables(self, kind: str, value: str) -> dict[str, str]:
        """Return the variables that keep its daemons to a network; `kind` is "include" or "exclude"."""
        taken = self.takes_networks or "," not in value
        return {f"{self.networks}{kind}": value} if taken else {}

    def keepalive_variables(self, heartbeat: float) -> dict[str, str]:
        """Return the variables with which a daemon that is cut off ends after twice the heartbeat, not after 8 minutes.

        Once a daemon has started a keeper, that ends it.
        """
        idle = min(math.ceil(heartbeat), LONGEST_KEEPALIVE)
        values = {"time": idle, "intvl": math.ceil(idle / KEEPALIVE_PROBES), "probes": KEEPALIVE_PROBES}
        return {f"{self.keepalive}_{name}": str(value) for name, value in values.items()}

    def session_variables(self, environ: Mapping[str, str], *, local: bool, spawns: bool) -> tuple[str, ...]:
        """Return the variables that give it, but not its daemons on other hosts, a folder of its own for its session.

        The default folder in /tmp is named after mpirun's process number. An mpirun that was killed leaves it
        behind, and one of Open MPI 5 that later gets the same number stops ("listener thread failed to start").
        """
        stops = spawns and self.stops_at_folders and not local  # spawned processes have no keeper
        if stops or any(name in environ for name in self.session_folders):
            return ()
        return self.session_folders[:1] if local else self.session_folders[1:]


def major(version: str) -> int:
    """Return the major version."""
    return int(version.split(".", maxsplit=1)[0])


def _check_paths(job: ManagerJob) -> None:
    bad = sorted(set(job.rankfile) & set(":,"))
    if bad:
        raise PreflightError(f"run folder {job.rankfile!r}: Open MPI 5 cannot take {bad[0]!r} in it; name another")
    split = next((word for word in job.ssh if " " in word), "")
    if split and job.hosts.names != ("localhost",):
        raise PreflightError(f"argument of ssh {split!r}: Open MPI splits it at its blanks; use a path without one")


def _fill(words: Sequence[str], value: str) -> tuple[str, ...]:
    return tuple(word.replace("{}", value) for word in words)
