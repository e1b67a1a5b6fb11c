"""Slurm's srun as the process manager: it starts every rank, where a site has no mpirun or forbids it.

Slurm's plugins for PMIx and PMI-2 connect the ranks of Open MPI, MPICH and Intel MPI. The order of the hosts' names
gives each rank its host. Slurm binds the ranks where it can and where all hosts have equal CPUs; any other rank binds
itself.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ddlrun.errors import PreflightError
from ddlrun.managers import ManagerJob, ProcessManager
from ddlrun.managers.end import EndFinding, ManagerOutput, find_patterns
from ddlrun.managers.program_mpi import chooses_mpich
from ddlrun.managers.slurm_step import STEP, TASKS
from ddlrun.remote.processes import start_command

# The user's or the job's variables that would place or bind the tasks of the step otherwise.
OVERRULING = (
    "SLURM_HOSTFILE", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE", "SLURM_CPU_BIND",
    "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_THREADS_PER_CORE", "SLURM_EXACT", "SLURM_EXCLUSIVE",
)  # fmt: skip
# The Linux kernel takes no longer word in a command.
MOST_CHARACTERS = 131_000


class SrunFeatures(NamedTuple):
    """What the Slurm of this machine can do."""

    mpi_types: frozenset[str]
    """The values of srun's --mpi."""
    default_type: str
    """The one that the site has chosen; none: it has not."""
    binds: bool
    """Whether tasks are bound to CPUs."""


def parse_features(mpi_list: str, config: str) -> SrunFeatures:
    r"""Parse the output of `srun --mpi=list` and of `scontrol show config`.

    >>> features = parse_features("MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions", "")
    >>> sorted(features.mpi_types), features.default_type, features.binds
    (['none', 'pmix'], 'none', False)
    >>> parse_features("srun: MPI types are...\nsrun: pmi2", "MpiDefault = pmi2\nTaskPlugin = task/affinity").binds
    True
    """
    types = re.findall(r"(?m)^(?:srun:)?[ \t]*([a-z0-9_]+)[ \t]*$", mpi_list)
    settings = dict(re.findall(r"(?m)^(MpiDefault|TaskPlugin)[ \t]*=[ \t]*(\S+)", config))
    return SrunFeatures(
        mpi_types=frozenset(types),
        default_type=settings.get("MpiDefault", "none").replace("(null)", "none"),
        binds="affinity" in settings.get("TaskPlugin", ""),
    )


def choose_mpi_type(features: SrunFeatures, environ: Mapping[str, str]) -> str | None:
    """Return the value of --mpi: PMIx for Open MPI, PMI-2 for MPICH and Intel MPI; None: that of the user or the site.

    >>> features = SrunFeatures(frozenset(("none", "pmi2", "pmix")), "none", binds=False)
    >>> choose_mpi_type(features, {}), choose_mpi_type(features, {"MPI4PY_MPIABI": "mpich"})
    ('pmix', 'pmi2')
    >>> choose_mpi_type(features, {"SLURM_MPI_TYPE": "pmix_v4"}) is None
    True
    """
    if environ.get("SLURM_MPI_TYPE", "none") != "none":
        return None
    if chooses_mpich(environ) and "pmi2" in features.mpi_types:
        return "pmi2"
    if features.default_type != "none":
        return None
    return next((name for name in ("pmix", "pmi2") if name in features.mpi_types), "none")


@dataclass(frozen=True, slots=True)
class Srun(ProcessManager):
    """Slurm's srun."""

    title = "srun of Slurm"
    rank_variables = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
    pmi = "slurm"
    needs = frozenset()

    mpi_type: str | None = None
    """The value of --mpi; None: that of the user or the site."""
    binds: bool = False
    """Whether tasks are bound to CPUs."""

    @staticmethod
    def parse_version(text: str) -> str | None:
        """Return the version from the output of `srun --version`; None for another program.

        >>> Srun.parse_version("slurm-wlm 22.05.8"), Srun.parse_version("slurm 24.11.1")
        ('22.05.8', '24.11.1')
        >>> Srun.parse_version("mpirun (Open MPI) 5.0.11") is None
        True
        """
        match = re.match(r"slurm(?:-wlm)? (\d+\.\d+\S*)", text)
        return match[1] if match else None

    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv of srun. Raises PreflightError outside a Slurm job, and for too long a list of hosts."""
        if not job.step:
            raise PreflightError(
                "srun starts ranks on the hosts of one Slurm job alone, which ddlrun runs in; use another "
                "`--process-manager`"
            )
        nodelist = ",".join(job.rank_hosts)
        if len(nodelist) > MOST_CHARACTERS:
            raise PreflightError(f"srun cannot take the hosts of {job.ranks} ranks on its command line; use mpirun")
        return (
            "env", *(word for name in OVERRULING for word in ("-u", name)),
            self.path, *job.step, "--overlap", "--overcommit", "--quiet", "--kill-on-bad-exit=0", "--wait=0",
            "--input=none", "--export=ALL", *([] if self.mpi_type is None else [f"--mpi={self.mpi_type}"]),
            *_cpu_bind(job.cpus, binds=self.binds), "--distribution=arbitrary", f"--nodelist={nodelist}",
            f"--nodes={len(job.hosts)}", f"--ntasks={job.ranks}", *job.extra, *job.program,
        )  # fmt: skip

    def read_end(self, output: ManagerOutput) -> tuple[EndFinding, ...]:
        """Return the findings of srun about the end of its step."""
        return tuple(find_patterns(output.text, (*STEP, *TASKS)))


def query_srun(path: str, version: str, reason: str, environ: Mapping[str, str]) -> Srun:
    """Ask the Slurm of this machine for its features, and return its srun."""
    mpi_list, config = start_command([path, "--mpi=list"]), start_command(["scontrol", "show", "config"])
    listed = mpi_list()
    return make_srun(path, version, reason, parse_features(f"{listed.out}\n{listed.err}", config().out), environ)


def make_srun(path: str, version: str, reason: str, features: SrunFeatures, environ: Mapping[str, str]) -> Srun:
    """Return the srun of a Slurm with some features."""
    return Srun(path, version, reason, mpi_type=choose_mpi_type(features, environ), binds=features.binds)


def _cpu_bind(cpus: Iterable[Iterable[int]], *, binds: bool) -> tuple[str, ...]:
    """Return srun's binding: a mask for each local rank, or none, with which each rank binds itself.

    >>> _cpu_bind([(0, 1), (2, 3)], binds=True), _cpu_bind([], binds=True), _cpu_bind([(0,)], binds=False)
    (('--cpu-bind=mask_cpu:0x3,0xc',), ('--cpu-bind=none',), ())
    """
    if not binds:  # srun would complain
        return ()
    masks = [f"{sum(1 << cpu for cpu in set(rank)):#x}" for rank in cpus]
    return (f"--cpu-bind=mask_cpu:{','.join(masks)}",) if masks else ("--cpu-bind=none",)
