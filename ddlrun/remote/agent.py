"""What starts programs on a job's hosts: ssh, or the scheduler's own command; for our scripts and for mpirun."""

import os.path
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import HostList, fold
from ddlrun.schedulers import TITLES, Allocation, detect_schedulers

# Launcher -> the scheduler in whose jobs it works.
OWNERS = {"srun": "slurm", "blaunch": "lsf", "qrsh": "sge"}
LAUNCHERS = ("ssh", "srun", "blaunch", "qrsh", "agent")


class AgentLauncher(NamedTuple):
    """How programs are started on hosts."""

    launcher: str = "ssh"
    words: tuple[str, ...] = ()
    """ssh's own arguments, or those that the launcher's command begins with."""
    reason: str = "ssh"
    gpus: Mapping[str, str] = {}
    """Host -> the device numbers of the GPUs that the scheduler gave there, as in 0,2; nothing: it does not say."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The command line without the host and what is to run there, as a user would try it."""
        return {
            "ssh": ("ssh", *self.words),
            "srun": ("srun", "--overlap", "-w"),
            "blaunch": ("blaunch",),
            "qrsh": ("qrsh", "-inherit"),
        }.get(self.launcher, self.words)


def as_named(hosts: HostList, job: Allocation | None) -> HostList:
    """Return the hosts as the job names them: n1.site for n1, where only one of its hosts can be meant."""
    if job is None or all(name in job.hosts.names for name in hosts.names):
        return hosts
    short: dict[str, list[str]] = {}
    for name in job.hosts.names:
        short.setdefault(name.lower().partition(".")[0], []).append(name)
    meant = {name: short.get(name.lower().partition(".")[0], []) for name in hosts.names if name not in job.hosts.names}
    return hosts.take(
        host._replace(name=meant[host.name][0]) if len(meant.get(host.name, ())) == 1 else host for host in hosts
    )


def choose_way(
    wanted: str, job: Allocation | None, hosts: HostList, ssh: Sequence[str], environ: Mapping[str, str]
) -> AgentLauncher:
    """Return what starts programs: the job's own launcher for its own hosts, else ssh.

    `wanted` is auto or one of LAUNCHERS. Raises InputError where that one cannot serve here.
    """
    foreign = [name for name in hosts.names if job is None or name not in job.hosts.names]
    if wanted in OWNERS and (job is None or foreign or OWNERS[wanted] != job.scheduler):
        ours = job is not None and OWNERS[wanted] == job.scheduler
        what = (
            f"{fold(foreign)} is not in {job.title}" if job and ours else f"this is no job of {TITLES[OWNERS[wanted]]}"
        )
        raise InputError(f"--launcher {wanted}: {what}, so nothing can be started there by {wanted}; use ssh")
    agent = _given(environ, ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"))
    if wanted == "agent" and not agent:
        raise InputError("--launcher agent: OMPI_MCA_plm_rsh_agent, which names it, is not set")
    gpus = job.gpu_numbers if job is not None else {}
    words = tuple(ssh) or _given(environ, ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"))
    if wanted == "auto" and (job is None or foreign or ssh):
        why = "-p and -i are ssh's" if job and not foreign else "not a job's own hosts" if job else "no scheduler's job"
        return AgentLauncher("ssh", words, f"ssh: {why}", gpus)
    launcher = job.launcher if wanted == "auto" and job is not None else wanted
    reason = f"{launcher}: {job.title}" if wanted == "auto" and job is not None else f"--launcher {wanted}"
    gres = step_gres(job, environ) if job is not None else None
    step = (f"--jobid={job.job_id}", *([f"--gres={gres}"] if gres else [])) if job else ()
    own = {"ssh": words, "agent": agent, "srun": step}
    return AgentLauncher(launcher, own.get(launcher, ()), reason, gpus)


def _given(environ: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the words of the first variable that is set. Raises InputError where they are none."""
    for name in names:
        try:
            if words := shlex.split(environ.get(name, "")):
                return tuple(words)
        except ValueError as error:
            raise InputError(f"{name}={environ[name]!r}: {error}; quote it as for a shell") from error
    return ()


DAEMON = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/rank/daemon.sh"
# What sbatch was asked for, of which srun would give each of its steps a part: daemons get all of the job's.
PARTS = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_GPU_BIND",
)  # fmt: skip
# Slurm sets these for each host; the first host's are not the others'.
CHOSEN_BY_SLURM = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# Open MPI's readers of an allocation. Where one reads it, its slots and hosts overrule the hostfile's.
READERS = {4: "^slurm,lsf,tm,gridengine,alps", 5: "^slurm,lsf,pbs,gridengine,flux"}

# The parallel environment's slots would be taken; and orted would pass on a warning that the ranks have from ddlrun.
_OF_QRSH = {
    "OMPI_MCA_ras": "^gridengine",
    "OMPI_MCA_orte_launch_agent": f"sh {DAEMON} orted",
    "OMPI_MCA_ess_base_forward_signals": "none",
}


def daemon_variables(
    way: AgentLauncher,
    major: int,
    job: Allocation | None,
    ranks: int,
    environ: Mapping[str, str],
    *,
    alone: bool = False,
) -> dict[str, str]:
    """Return the variables that make mpirun start its daemons that way, and take each host for `ranks` slots.

    `alone`: there are no daemons, as all ranks are on this host. Measured with Slurm 22.05 and Open MPI 4.1.4
    and 5.0.11 (docs/explanation/schedulers.md).
    """
    mca, plm = (("OMPI_MCA_", "rsh"), ("PRTE_MCA_", "ssh"))[major == 5]
    deaf = {"PRTE_MCA_prte_launch_agent": f"sh {DAEMON} prted"} if major == 5 else {}
    if way.launcher == "srun":
        return _of_slurm(job, ranks, environ) | deaf
    # Daemons would start others themselves in large jobs, which only the first host may do.
    flat = {f"{mca}plm_{plm}_no_tree_spawn": "1"}
    if way.launcher == "qrsh":
        return flat | (deaf or _OF_QRSH)
    hidden = {f"{mca}ras": READERS[major], **({} if alone else {f"{mca}plm": plm})}
    if way.launcher == "blaunch":
        return flat | hidden | {f"{mca}plm_{plm}_agent": "blaunch"}
    if way.launcher == "agent":
        return flat | {f"{mca}plm_{plm}_agent": shlex.join(way.words)}
    inside = [name for name in detect_schedulers(environ) if name != "kubernetes"]
    if not inside:
        return {}
    # Both: without the reader alone, srun would start the daemons on other hosts than mpirun takes them for.
    return hidden | ({f"{mca}plm_{plm}_disable_qrsh": "1"} if "sge" in inside else {})


def step_gres(job: Allocation, environ: Mapping[str, str]) -> str | None:
    """Return the --gres of a step where the job asked for GPUs in all, or a task: as many as each host has.

    Else Slurm wants all of the job's GPUs on the hosts of the step, and refuses one over fewer hosts.
    """
    if not job.gpu_numbers or not any(name in environ for name in PARTS):
        return None
    fewest = min(len(job.gpu_numbers[name].split(",")) if name in job.gpu_numbers else 0 for name in job.hosts.names)
    return f"gpu:{fewest}" if fewest else "none"


def _of_slurm(job: Allocation | None, ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    variables = {
        "SLURM_OVERLAP": "1",  # a step that holds the cores (srun --pty) would make mpirun's srun wait for ever
        "SLURM_CPU_BIND": "none",  # the rank file binds
        "SLURM_EXPORT_ENV": "ALL",  # after sbatch --export=NONE daemons would not find their libraries
    }
    if job is not None:  # what Open MPI reads; inside `srun --pty` these are the step's, and of one host
        hosts = len(job.hosts)
        nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
        variables |= {
            "SLURM_TASKS_PER_NODE": f"{ranks}(x{hosts})", "SLURM_NODELIST": nodelist,
            "SLURM_NNODES": str(hosts), "SLURM_JOB_NUM_NODES": str(hosts),
        }  # fmt: skip
        if gres := step_gres(job, environ):
            variables["SLURM_GRES"] = gres
    return {name: value for name, value in variables.items() if environ.get(name) != value}


def join_scripts(scripts: Mapping[str, str]) -> str:
    """Return one sh script that does on each host what its own would: SLURMD_NODENAME says which it is.

    The end that all scripts share is written once. Its first line of output names the host, its last the exit code.
    """
    whole = list(scripts.values())
    shared = os.path.commonprefix([script[::-1] for script in whole])[::-1]  # noqa: RUF071 - characters
    heads: dict[str, list[str]] = {}
    for name, script in scripts.items():
        heads.setdefault(script[: len(script) - len(shared)], []).append(name)
    cases = "".join(f"{'|'.join(names)}) head={shlex.quote(head)} ;;\n" for head, names in heads.items())
    return (
        f'echo "@host $SLURMD_NODENAME"\ncase $SLURMD_NODENAME in\n{cases}*) exit 1 ;;\nesac\n'
        f'( eval "$head"{shlex.quote(shared)} ) </dev/null\necho "@code $?"\n'
    )


def split_labels(out: str, err: str) -> dict[str, tuple[str, str, int | None]]:
    """Return host -> what it wrote to both streams and its exit code, from `srun --label`'s of a joined script."""
    texts: list[dict[int, list[str]]] = [{}, {}]
    for stream, said in enumerate((out, err)):
        for line in said.splitlines(keepends=True):
            if match := re.match(r" *([0-9]+): ?", line):
                texts[stream].setdefault(int(match[1]), []).append(line[match.end() :])
    found = {}
    for task, lines in texts[0].items():
        if not lines[0].startswith("@host "):
            continue
        code = int(lines.pop()[6:]) if lines[-1].startswith("@code ") else None
        found[lines[0][6:].strip()] = "".join(lines[1:]), "".join(texts[1].get(task, ())), code
    return found
