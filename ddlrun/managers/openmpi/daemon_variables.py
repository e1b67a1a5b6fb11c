"""Variables that make mpirun start its daemons by the job's launcher.

They were measured with Slurm 22.05 and Open MPI 4.1.4 and 5.0.11 (docs/explanation/schedulers.md).
"""

import os.path
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.remote.agent import step_gres
from ddlrun.schedulers import Allocation, detect_schedulers

DAEMON = f"{os.path.dirname(os.path.abspath(__file__))}/daemon.sh"
# Open MPI's major version -> its readers of an allocation, excluded. One that reads it would overrule the hostfile.
READERS = {4: "^slurm,lsf,tm,gridengine,alps", 5: "^slurm,lsf,pbs,gridengine,flux"}
# The parallel environment's slots would be read; and orted would pass on a warning that ddlrun passes on itself.
QRSH_VARIABLES = {
    "OMPI_MCA_ras": "^gridengine",
    "OMPI_MCA_orte_launch_agent": f"sh {DAEMON} orted",
    "OMPI_MCA_ess_base_forward_signals": "none",
}


class DaemonRequest(NamedTuple):
    """The daemons that mpirun is to start."""

    launcher: str
    """The launcher that starts them: see agent.LAUNCHERS."""
    words: Sequence[str]
    """The words of the launcher's command."""
    major: int
    """Open MPI's major version."""
    slots: int
    """The most ranks that a host has."""
    job: Allocation | None = None
    """The job that ddlrun runs in."""
    alone: bool = False
    """Whether all ranks are on this host, so that there are no daemons."""


def daemon_variables(request: DaemonRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for mpirun."""
    prefix, component = ("PRTE_MCA_", "ssh") if request.major == 5 else ("OMPI_MCA_", "rsh")
    plm = f"{prefix}plm_{component}"
    prted = {"PRTE_MCA_prte_launch_agent": f"sh {DAEMON} prted"} if request.major == 5 else {}
    if request.launcher == "srun":
        return _for_slurm(request.job, request.slots, environ) | prted
    # Daemons would start others themselves in large jobs, which only the first host may do.
    flat = {f"{plm}_no_tree_spawn": "1"}
    if request.launcher == "qrsh":
        return flat | (prted or QRSH_VARIABLES)
    unread = {f"{prefix}ras": READERS[request.major]}
    if not request.alone:
        unread[f"{prefix}plm"] = component
    if request.launcher == "blaunch":
        return flat | unread | {f"{plm}_agent": "blaunch"}
    if request.launcher in ("kubectl", "agent"):
        return flat | {f"{plm}_agent": shlex.join(request.words)}
    schedulers = [name for name in detect_schedulers(environ) if name != "kubernetes"]
    if not schedulers:
        return {}
    # Both: without the reader alone, srun would start the daemons on other hosts than mpirun takes them for.
    return unread | ({f"{plm}_disable_qrsh": "1"} if "sge" in schedulers else {})


def _for_slurm(job: Allocation | None, slots: int, environ: Mapping[str, str]) -> dict[str, str]:
    variables = {
        "SLURM_OVERLAP": "1",  # mpirun's srun would block while another step (srun --pty) holds the cores
        "SLURM_CPU_BIND": "none",  # the rank file binds
        "SLURM_EXPORT_ENV": "ALL",  # after sbatch --export=NONE daemons would not find their libraries
    }
    if job is not None:  # Open MPI reads these; inside `srun --pty` they describe the step, with one host
        hosts = len(job.hosts)
        nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
        variables |= {
            "SLURM_TASKS_PER_NODE": f"{slots}(x{hosts})", "SLURM_NODELIST": nodelist,
            "SLURM_NNODES": str(hosts), "SLURM_JOB_NUM_NODES": str(hosts),
        }  # fmt: skip
        if gres := step_gres(job, environ):
            variables["SLURM_GRES"] = gres
    return {name: value for name, value in variables.items() if environ.get(name) != value}
