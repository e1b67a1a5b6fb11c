"""Job schedulers: the hosts of the job that ddlrun runs in. One module per scheduler."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import HostList

TITLES = {
    "flux": "Flux",
    "kubernetes": "Kubernetes",
    "slurm": "Slurm",
    "lsf": "LSF",
    "pbs": "PBS",
    "sge": "Grid Engine",
    "cobalt": "Cobalt",
}
# Scheduler -> sets of environment variables, any of which shows its job. The innermost comes first: Flux is started
# inside other schedulers' jobs, and a pod or a container may run in one, too.
JOB_VARIABLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "flux": (("FLUX_JOB_ID",), ("FLUX_ENCLOSING_ID", "FLUX_URI")),
    "kubernetes": (("OMPI_MCA_orte_default_hostfile",), ("PRTE_MCA_prte_default_hostfile",)),
    "slurm": (("SLURM_JOB_ID",), ("SLURM_JOBID",)),
    "lsf": (("LSB_JOBID",),),
    "pbs": (("PBS_JOBID",),),
    "sge": (("JOB_ID", "PE_HOSTFILE"),),
    "cobalt": (("COBALT_JOBID",),),
}
# Remedy of every error about a job whose hosts cannot be read.
NAME_HOSTS = "name the hosts with -H, or ignore the scheduler with --scheduler none"


class SchedulerContext(NamedTuple):
    """What readers of schedulers use of the outside world."""

    environ: Mapping[str, str]
    read: Callable[[str], str]
    """Returns the text of a file. Raises InputError."""
    query: Callable[[Sequence[str]], str | None]
    """Returns the standard output of a command, None where it fails."""

    def read_variable_file(self, variable: str) -> str:
        """Return the text of the file that a variable names. Raises InputError with the variable and a remedy."""
        if not self.environ.get(variable):
            raise InputError(f"{variable}, which names the job's hosts, is not set; {NAME_HOSTS}")
        try:
            return self.read(self.environ[variable])
        except InputError as error:
            raise InputError(f"{variable}: {error}; {NAME_HOSTS}") from error


class Allocation(NamedTuple):
    """The job that ddlrun runs in, and what its scheduler allocated to it."""

    scheduler: str
    job_id: str
    """Id of the job in the scheduler's commands."""
    hosts: HostList
    launcher: str = "ssh"
    """Launcher that starts programs on the hosts: see remote/agent.py."""
    gpus: int | None = None
    """GPUs per host; None where the scheduler does not report them, or hosts differ."""
    gpu_numbers: Mapping[str, str] = MappingProxyType({})
    """Host -> device numbers of its GPUs, such as 0,2; empty where the scheduler does not report them."""
    cyclic: bool = False
    """The user requested ranks round robin over the hosts."""
    restarts: int = 0
    """How often the scheduler has restarted this job."""
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the job's name for messages."""
        return f"{TITLES[self.scheduler]} job {self.job_id}"


class JobEnd(NamedTuple):
    """End of a job by its scheduler: ddlrun's exit code and the reason."""

    exit_code: int
    reason: str


def detect_schedulers(environ: Mapping[str, str]) -> list[str]:
    """Return the schedulers whose jobs the environment shows, the innermost first."""
    return [
        name
        for name, alternatives in JOB_VARIABLES.items()
        if any(all(environ.get(variable) for variable in variables) for variables in alternatives)
    ]


def read_allocation(context: SchedulerContext, scheduler: str = "auto") -> Allocation | None:
    """Return the job that ddlrun runs in, None outside any job or where `scheduler` is "none".

    Raises InputError where the job's variables or files are broken, or there is no job of `scheduler`.
    """
    detected = detect_schedulers(context.environ)
    if scheduler == "none" or (scheduler == "auto" and not detected):
        return None
    if scheduler not in ("auto", *detected):
        variables = " or ".join(", ".join(names) for names in JOB_VARIABLES[scheduler])
        raise InputError(
            f"--scheduler {scheduler}: not inside a job of {TITLES[scheduler]} ({variables} is not set); "
            "leave the option out"
        )
    name = detected[0] if scheduler == "auto" else scheduler
    reader: Callable[[SchedulerContext], Allocation] = importlib.import_module(f"ddlrun.schedulers.{name}").read
    allocation = reader(context)
    outer = " and of ".join(TITLES[other] for other in detected if other != name)
    if not outer or scheduler != "auto":
        return allocation
    note = (
        f"this is also a job of {outer}; {TITLES[name]} is the innermost, so its hosts are used "
        "(--scheduler selects another)"
    )
    return allocation._replace(notes=(*allocation.notes, note))


def read_job_end(context: SchedulerContext, allocation: Allocation) -> JobEnd | None:
    """Return the end of the job by its scheduler; None where the job goes on, or there is no answer."""
    if allocation.scheduler != "slurm":
        return None
    # Loaded by name, as the readers are: each of these modules imports this one.
    scontrol = importlib.import_module("ddlrun.schedulers.scontrol")
    end: JobEnd | None = scontrol.read_end(context, allocation)
    return end and end._replace(reason=f"{allocation.title} {end.reason}")
