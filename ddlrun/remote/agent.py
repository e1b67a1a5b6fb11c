"""The launcher of programs on a job's hosts: ssh, or the scheduler's own command; for our scripts and for daemons."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.environment.open_mpi import AGENTS, SSH_ARGUMENTS
from ddlrun.errors import InputError
from ddlrun.hosts import HostList, fold
from ddlrun.schedulers import TITLES, Allocation

# Launcher -> the scheduler in whose jobs it works.
OWNERS = {"srun": "slurm", "blaunch": "lsf", "qrsh": "sge"}
LAUNCHERS = ("ssh", "srun", "blaunch", "qrsh", "kubectl", "agent")
# Those that work on all hosts of the job; the others work where ddlrun runs.
WORK_EVERYWHERE = ("ssh", "srun")
KUBECTL, KUBEXEC = (
    os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("kubectl.sh", "kubexec_stdin.sh")
)
# A host's script must arrive there within this time.
SCRIPT_SECONDS = 60
# The variables in which the MPI operator has ssh's arguments for Intel MPI and MPICH; elsewhere they may be another's.
OPERATOR_SSH_VARIABLES = ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")
# The requests to sbatch of which srun would give each step a part; daemons get everything that the job has.
PARTS = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_GPU_BIND",
)  # fmt: skip
# Slurm sets these for each host; the first host's values do not suit the others.
CHOSEN_BY_SLURM = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# No terminal, which RequestTTY of ~/.ssh/config may ask for: it would echo the script and never end it.
SSH_OPTIONS = ("-T",)


class AgentLauncher(NamedTuple):
    """The way to start programs on hosts."""

    launcher: str = "ssh"
    """One of LAUNCHERS."""
    words: tuple[str, ...] = ()
    """The arguments of ssh, or the first words of the launcher's command."""
    reason: str = "ssh"
    """Why this launcher was chosen."""
    gpus: Mapping[str, str] = MappingProxyType({})
    """Host -> the device numbers of the GPUs that the scheduler granted there, as in 0,2; empty if unknown."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The command line without the host and the program, as a user would try it."""
        return {
            "ssh": ("ssh", *self.words),
            "srun": ("srun", "--overlap", "-w"),
            "blaunch": ("blaunch",),
            "qrsh": ("qrsh", "-inherit"),
            "kubectl": ("kubectl", "exec"),
        }.get(self.launcher, self.words)

    @property
    def shell(self) -> tuple[str, ...]:
        """The command line of a shell that reads its script from standard input.

        The word @host stands for the host, and @bytes in the last word for the length of the script.
        """
        step = (
            "--overlap",
            "--immediate=5",
            "--quiet",
            "--mpi=none",
            "--cpu-bind=none",
            "--export=ALL",
            "--unbuffered",
        )
        one_task = ("--kill-on-bad-exit=0", "--nodes=1", "--ntasks=1", "-w", "@host", "sh", "-s")
        srun = ("env", *(f"-u{name}" for name in PARTS), "srun")
        return {
            "ssh": ("ssh", *SSH_OPTIONS, *self.words, "-o", "BatchMode=yes", "@host", run_script()),
            "srun": (*srun, *self.words, *step, *one_task),
            "blaunch": ("blaunch", "@host", "sh", "-s"),
            "qrsh": ("qrsh", "-inherit", "@host", "sh", "-s"),
        }.get(self.launcher, (*self._with_stdin, "@host", run_script()))

    @property
    def works_everywhere(self) -> bool:
        """Whether hosts of the job can start programs on each other by this launcher."""
        return self.launcher in WORK_EVERYWHERE

    @property
    def passes_stdin(self) -> bool:
        """Whether `shell` is known to pass on standard input; an agent need not."""
        return self.launcher != "agent" or is_kubexec(self.words)

    @property
    def starts_daemons(self) -> bool:
        """Whether agents can start the daemons of process managers; in Slurm these start a step for them."""
        return self.passes_stdin and self.launcher != "srun"

    @property
    def needs_names(self) -> bool:
        """Whether the names of hosts must resolve; kubectl and agents know hosts by other means."""
        return self.launcher not in ("kubectl", "agent")

    @property
    def _with_stdin(self) -> tuple[str, ...]:
        """The first words of an agent's command line, with which it passes standard input on."""
        return ("sh", KUBEXEC, *self.words) if is_kubexec(self.words) else self.words


def run_script(size: str = "@bytes", seconds: int = SCRIPT_SECONDS) -> str:
    """Return a command, for any login shell, that reads a script of some bytes from standard input and runs it.

    It exits if the script has not arrived in time: a host whose network fails is not told that no more will come. No
    limit applies on a terminal (ssh -tt), or on a host without the timeout of coreutils or of BusyBox 1.30. Send
    nothing more until the script runs, as BusyBox's head reads ahead.
    """
    read = f"[ -t 0 ] && exec sh -s; unset s; s=$(timeout {seconds} head -c {size} 2>/dev/null); case $? in"
    late = 'echo "the script for this host did not arrive in time" >&2; exit 124'
    return f"exec sh -c '{read} 0) eval \"$s\" ;; 126|127) exec sh -s ;; *) {late} ;; esac'"


def is_kubexec(words: Sequence[str]) -> bool:
    """Return True for the agent of the MPI operator's first version, which calls kubectl without standard input."""
    return bool(words) and os.path.basename(words[0]) == "kubexec.sh"


def apply_job_names(hosts: HostList, job: Allocation | None) -> HostList:
    """Return the hosts with the job's names for them: n1.site for n1, if no other host of the job begins so."""
    if job is None or all(name in job.hosts.names for name in hosts.names):
        return hosts
    by_short_name: dict[str, list[str]] = {}
    for name in job.hosts.names:
        by_short_name.setdefault(_short(name), []).append(name)
    candidates = {name: by_short_name.get(_short(name), []) for name in hosts.names if name not in job.hosts.names}
    return hosts.take(
        host._replace(name=candidates[host.name][0]) if len(candidates.get(host.name, ())) == 1 else host
        for host in hosts
    )


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def choose_launcher(
    request: str, job: Allocation | None, hosts: HostList, ssh: Sequence[str], environ: Mapping[str, str]
) -> AgentLauncher:
    """Return the launcher of a job's programs: with "auto" the scheduler's for the job's own hosts, else ssh.

    `ssh` are the user's arguments for ssh. Raises InputError where the requested launcher does not work here.
    """
    foreign = job is None or any(name not in job.hosts.names for name in hosts.names)
    agent = _words_of(environ, AGENTS)
    _check_request(request, job, hosts, agent)
    gpus = job.gpu_numbers if job is not None else MappingProxyType({})
    operator = OPERATOR_SSH_VARIABLES if job is not None and job.scheduler == "kubernetes" else ()
    ssh_words = tuple(ssh) or _words_of(environ, (*SSH_ARGUMENTS, *operator))
    if request == "auto":
        if job is None or foreign or ssh:
            return AgentLauncher("ssh", ssh_words, _why_ssh(job, foreign=foreign), gpus)
        launcher, reason = job.launcher, f"{job.launcher}: {job.title}"
    else:
        launcher, reason = request, f"--launcher {request}"
    words = {"ssh": ssh_words, "agent": agent, "srun": _step_words(job, environ), "kubectl": ("sh", KUBECTL)}
    return AgentLauncher(launcher, words.get(launcher, ()), reason, gpus)


def _check_request(request: str, job: Allocation | None, hosts: HostList, agent: Sequence[str]) -> None:
    """Raise InputError if a requested launcher does not work for these hosts."""
    if request == "agent" and not agent:
        raise InputError(f"`--launcher` agent: {AGENTS[0]}, which names it, is not set")
    owner = OWNERS.get(request)
    if owner is None:
        return
    foreign = [name for name in hosts.names if job is None or name not in job.hosts.names]
    if job is None or owner != job.scheduler:
        problem = f"this is not a job of {TITLES[owner]}"
    elif foreign:
        problem = f"{fold(foreign)} is not in {job.title}"
    else:
        return
    raise InputError(f"`--launcher` {request}: {problem}, so nothing can be started there by {request}; use ssh")


def _why_ssh(job: Allocation | None, *, foreign: bool) -> str:
    if job is None:
        return "ssh, as this is not a scheduler's job"
    return "ssh, as not all hosts belong to the job" if foreign else "ssh, as -p and -i are options of ssh"


def _step_words(job: Allocation | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the first arguments of a Slurm step."""
    if job is None:
        return ()
    gres = step_gres(job, environ)
    return (f"--jobid={job.job_id}", f"--gres={gres}") if gres else (f"--jobid={job.job_id}",)


def step_gres(job: Allocation, environ: Mapping[str, str]) -> str | None:
    """Return the --gres of a step if the job asked for GPUs in total or per task: the fewest that a host has.

    Without it, Slurm wants all of the job's GPUs on the hosts of the step, and refuses one over fewer hosts.
    """
    if not job.gpu_numbers or not any(name in environ for name in PARTS):
        return None
    fewest = min(len(job.gpu_numbers[name].split(",")) if name in job.gpu_numbers else 0 for name in job.hosts.names)
    return f"gpu:{fewest}" if fewest else "none"


def _words_of(environ: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the words of the first variable that is set. Raises InputError if its quotes do not match."""
    for name in names:
        try:
            if words := shlex.split(environ.get(name, "")):
                return tuple(words)
        except ValueError as error:
            raise InputError(f"{name}={environ[name]!r}: {error}; quote it as for a shell") from error
    return ()
