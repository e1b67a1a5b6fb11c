"""Job schedulers: the hosts of the job that ddlrun runs in. One module per scheduler; plug-ins add others."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from ddlrun.environment.open_mpi import HOSTFILES
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.plugins import load_plugins

# The entry points of plug-ins; each is a SchedulerReader.
GROUP = "ddlrun.schedulers"
# Remedy of every error about a job whose hosts cannot be read.
NAME_HOSTS = "name the hosts with `-H`, or ignore the scheduler with `--scheduler` none"


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
    scheduler_title: str | None = None
    """The name of a plug-in's scheduler for messages; None: that of TITLES."""

    @property
    def title(self) -> str:
        """Return the job's name for messages."""
        return f"{self.scheduler_title or TITLES[self.scheduler]} job {self.job_id}"


class JobEnd(NamedTuple):
    """End of a job by its scheduler: ddlrun's exit code and the reason."""

    exit_code: int
    reason: str


class SchedulerReader(NamedTuple):
    """A scheduler: how ddlrun recognises its jobs, and reads their hosts."""

    title: str
    """Its name for messages."""
    job_variables: tuple[tuple[str, ...], ...]
    """Sets of environment variables, any of which shows a job."""
    read: Callable[[SchedulerContext], Allocation]
    """Returns the job's hosts. Raises InputError where its variables or files are broken."""


def _read_with(module: str) -> Callable[[SchedulerContext], Allocation]:
    """Return the function `read` of a module of this package, which is imported for a job of its scheduler alone."""

    def read(context: SchedulerContext) -> Allocation:
        reader: Callable[[SchedulerContext], Allocation] = importlib.import_module(f"ddlrun.schedulers.{module}").read
        return reader(context)

    return read


# The innermost comes first: Flux is started inside other schedulers' jobs, and a pod or a container may run in one,
# too.
READERS = {
    "flux": SchedulerReader("Flux", (("FLUX_JOB_ID",), ("FLUX_ENCLOSING_ID", "FLUX_URI")), _read_with("flux")),
    "kubernetes": SchedulerReader(
        "Kubernetes",
        (
            *((name,) for name in HOSTFILES),
            ("K_MPI_JOB_ROLE", "I_MPI_HYDRA_HOST_FILE"),
            ("K_MPI_JOB_ROLE", "HYDRA_HOST_FILE"),
        ),
        _read_with("kubernetes"),
    ),
    "slurm": SchedulerReader("Slurm", (("SLURM_JOB_ID",), ("SLURM_JOBID",)), _read_with("slurm")),
    "lsf": SchedulerReader("LSF", (("LSB_JOBID",),), _read_with("lsf")),
    "pbs": SchedulerReader("PBS", (("PBS_JOBID",),), _read_with("pbs")),
    "sge": SchedulerReader("Grid Engine", (("JOB_ID", "PE_HOSTFILE"),), _read_with("sge")),
    "cobalt": SchedulerReader("Cobalt", (("COBALT_JOBID",),), _read_with("cobalt")),
}
TITLES = {name: reader.title for name, reader in READERS.items()}


def detect_schedulers(environ: Mapping[str, str], readers: Mapping[str, SchedulerReader] = READERS) -> list[str]:
    """Return the schedulers whose jobs the environment shows, the innermost first."""
    return [
        name
        for name, reader in readers.items()
        if any(all(environ.get(variable) for variable in variables) for variables in reader.job_variables)
    ]


def read_allocation(context: SchedulerContext, scheduler: str = "auto") -> Allocation | None:
    """Return the job that ddlrun runs in, None outside any job or where `scheduler` is "none".

    Plug-ins are searched for a scheduler of another name, and where no other job is detected. Raises InputError where
    the job's variables or files are broken, or there is no job of `scheduler`.
    """
    if scheduler == "none":
        return None
    readers = READERS
    detected = detect_schedulers(context.environ)
    if scheduler not in READERS and (scheduler != "auto" or not detected):
        readers = READERS | load_plugins(GROUP, SchedulerReader) | READERS  # no plug-in replaces one of them
        detected = detect_schedulers(context.environ, readers)
    if scheduler == "auto" and not detected:
        return None
    name = detected[0] if scheduler == "auto" else scheduler
    if name not in detected:
        _raise_no_job(name, readers[name])
    allocation = readers[name].read(context)._replace(scheduler=name, scheduler_title=readers[name].title)
    outer = " and of ".join(readers[other].title for other in detected if other != name)
    if not outer or scheduler != "auto":
        return allocation
    note = (
        f"this is also a job of {outer}; {readers[name].title} is the innermost, so its hosts are used "
        "(--scheduler selects another)"
    )
    return allocation._replace(notes=(*allocation.notes, note))


def _raise_no_job(name: str, reader: SchedulerReader) -> NoReturn:
    variables = " or ".join(", ".join(names) for names in reader.job_variables)
    raise InputError(
        f"`--scheduler` {name}: not inside a job of {reader.title} ({variables} is not set); leave the option out"
    )


def read_job_end(context: SchedulerContext, allocation: Allocation) -> JobEnd | None:
    """Return the end of the job by its scheduler; None where the job goes on, or there is no answer."""
    if allocation.scheduler != "slurm":
        return None
    # Loaded by name, as the readers are: each of these modules imports this one.
    scontrol = importlib.import_module("ddlrun.schedulers.scontrol")
    end: JobEnd | None = scontrol.read_end(context, allocation)
    return end and end._replace(reason=f"{allocation.title} {end.reason}")
