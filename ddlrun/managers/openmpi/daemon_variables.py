"""Variables that make mpirun start its daemons by the job's launcher.

They were measured with Slurm 22.05 and Open MPI 4.1.4 and 5.0.11 (docs/explanation/schedulers.md).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.managers import DaemonRequest
from ddlrun.remote.agent import step_gres
from ddlrun.schedulers import Allocation, detect_schedulers

# mpirun starts the daemons of this many hosts itself.
MOST_DIRECT = 64


class DaemonStart(NamedTuple):
    """How a major version of Open MPI is told to start its daemons."""

    prefix: str
    """The beginning of its variables."""
    starter: str
    """The component that starts daemons by ssh."""
    readers: str
    """Its readers of an allocation, excluded. One that reads it would overrule the hostfile."""
    under_srun: Mapping[str, str]
    """Variables for daemons that srun starts."""
    under_qrsh: Mapping[str, str]
    """Variables for daemons that qrsh starts."""
    attached: Mapping[str, str]
    """Variables for daemons that no other daemon starts, but that do not leave their session."""

    @property
    def plm(self) -> str:
        """The beginning of the variables of its component that starts daemons by ssh."""
        return f"{self.prefix}plm_{self.starter}"

    @property
    def agent(self) -> str:
        """The variable that names ssh, or the program in its place."""
        return f"{self.plm}_agent"


def daemon_variables(request: DaemonRequest, start: DaemonStart, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for start."""
    plm = start.plm
    if request.launcher == "srun":
        return {**_for_slurm(request.job, request.slots, environ), **start.under_srun}
    # Daemons would start others themselves in large jobs, which only the first host may do.
    flat = {f"{plm}_no_tree_spawn": "1"}
    if request.launcher == "qrsh":
        return {**flat, **start.under_qrsh}
    unread = {f"{start.prefix}ras": start.readers}
    if not request.alone:
        unread[f"{start.prefix}plm"] = start.starter
    if request.launcher == "blaunch":
        return flat | unread | {start.agent: "blaunch"}
    if request.launcher in ("kubectl", "agent"):
        return flat | {start.agent: shlex.join(request.words)}
    schedulers = [name for name in detect_schedulers(environ) if name != "kubernetes"]
    if not schedulers:
        return {}
    # Both: without the reader alone, srun would start the daemons on hosts other than mpirun takes them for.
    return unread | ({f"{plm}_disable_qrsh": "1"} if "sge" in schedulers else {})


def relay_variables(start: DaemonStart, words: Sequence[str], hosts: int) -> dict[str, str]:
    """Return the variables with which it starts a program in place of each ssh client."""
    variables = {start.agent: " ".join(words), f"{start.plm}_disable_qrsh": "1"}
    if hosts <= MOST_DIRECT:
        return variables | {f"{start.plm}_no_tree_spawn": "0"}  # otherwise daemons would leave their session
    return variables | {f"{start.plm}_no_tree_spawn": "1", f"{start.plm}_num_concurrent": str(hosts), **start.attached}


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
