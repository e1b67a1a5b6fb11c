"""What a job scheduler says of the job that we run in: one small file a scheduler."""

import importlib
from collections.abc import Callable, Mapping, Sequence
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
# The innermost first: Flux is started inside other schedulers' jobs, a pod or a container may run in one too.
SIGNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "flux": (("FLUX_JOB_ID",), ("FLUX_ENCLOSING_ID", "FLUX_URI")),
    "kubernetes": (("OMPI_MCA_orte_default_hostfile",), ("PRTE_MCA_prte_default_hostfile",)),
    "slurm": (("SLURM_JOB_ID",), ("SLURM_JOBID",)),
    "lsf": (("LSB_JOBID",),),
    "pbs": (("PBS_JOBID",),),
    "sge": (("JOB_ID", "PE_HOSTFILE"),),
    "cobalt": (("COBALT_JOBID",),),
}


class SchedulerContext(NamedTuple):
    """What readers may ask: variables, a file's text (raises InputError), what a command prints (None: it fails)."""

    environ: Mapping[str, str]
    read: Callable[[str], str]
    ask: Callable[[Sequence[str]], str | None]

    def file(self, variable: str) -> str:
        """Return the text of the file that a variable names. Raises InputError with the variable and a way out."""
        if not self.environ.get(variable):
            raise InputError(f"{variable}, which names the job's hosts, is not set; name them: -H, or --scheduler none")
        try:
            return self.read(self.environ[variable])
        except InputError as error:
            raise InputError(f"{variable}: {error}; name the hosts: -H, or --scheduler none") from error


class Allocation(NamedTuple):
    """The job that we run in, and what its scheduler gave it."""

    scheduler: str
    job: str
    """Its id, as the scheduler's commands take it."""
    hosts: HostList
    launcher: str = "ssh"
    """What starts a program on its hosts: see launchers.py."""
    gpus: int | None = None
    """GPUs on each host, where the scheduler says so."""
    gpu_numbers: Mapping[str, str] = {}
    """Host -> the device numbers of its GPUs, as in 0,2; nothing: it does not say."""
    cyclic: bool = False
    """Ranks are wanted round robin over the hosts."""
    restarts: int = 0
    """So often has the scheduler started this job before."""
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name it in words."""
        return f"{TITLES[self.scheduler]} job {self.job}"


class JobEnd(NamedTuple):
    """What the scheduler has to do with the end of a run: ddlrun's exit code and the words."""

    exit_code: int
    words: str


LOST_HOST, TIMED_OUT, ENDED = 3, 124, 128 + 15


def signs(environ: Mapping[str, str]) -> list[str]:
    """Return the schedulers in whose job we seem to be, the innermost first."""
    return [name for name, ways in SIGNS.items() if any(all(environ.get(var) for var in way) for way in ways)]


def read_job(world: SchedulerContext, wanted: str = "auto") -> Allocation | None:
    """Return the job that we run in, None outside of any; `wanted` names one scheduler, or "none".

    Raises InputError where what the scheduler left is broken, or is not the wanted one's.
    """
    there = signs(world.environ)
    if wanted == "none" or (wanted == "auto" and not there):
        return None
    if wanted not in ("auto", *there):
        names = " or ".join(", ".join(way) for way in SIGNS[wanted])
        raise InputError(f"--scheduler {wanted}: this is no job of {TITLES[wanted]} ({names} is not set)")
    chosen = there[0] if wanted == "auto" else wanted
    reader: Callable[[SchedulerContext], Allocation] = importlib.import_module(f"ddlrun.schedulers.{chosen}").read
    found = reader(world)
    others = [TITLES[name] for name in there if name != found.scheduler]
    if others and wanted == "auto":
        note = (
            f"this is a job of {' and of '.join(others)} too; {TITLES[chosen]} is the innermost, so its hosts "
            "are taken (--scheduler names another)"
        )
        found = found._replace(notes=(*found.notes, note))
    return found


def job_end(world: SchedulerContext, job: Allocation) -> JobEnd | None:
    """Say how the scheduler ends the job; None where it does not, or cannot be asked."""
    if job.scheduler != "slurm":
        return None
    from ddlrun.schedulers.scontrol import read_end  # noqa: PLC0415 - as in read_job

    found = read_end(world, job)
    return found and found._replace(words=f"{job.title} {found.words}")
