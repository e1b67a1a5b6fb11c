"""Slurm: the environment of sbatch, salloc and srun, and the racks of its topology plugins."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.schedulers import ENDED, TIMED_OUT, Allocation, JobEnd, World
from ddlrun.schedulers.nodefile import parse_nodefile

TOPOLOGY = ("scontrol", "show", "topology")
MOST_TASKS = 1_000_000


def read(world: World) -> Allocation:
    """Return the job's hosts with their tasks and racks.

    Raises InputError on variables that are missing or contradict each other, and where srun has started us
    once a task.
    """
    environ = world.environ
    job = environ.get("SLURM_JOB_ID") or environ["SLURM_JOBID"]
    _check_alone(environ, job)
    hosts, source = _hosts(world, job)
    racks = read_racks(world)
    placed = tuple(host._replace(rack=racks.get(host.name)) for host in hosts)
    several = bool(_groups(environ))
    notes = []
    if several:
        notes.append(
            "a heterogeneous job: mpirun starts its daemons by ssh, as srun would start them in one part alone"
        )
    return Allocation(
        "slurm", job, HostList(placed, f"Slurm job {job} ({source})"),
        launcher="ssh" if several else "srun",
        gpus=_number(environ.get("SLURM_GPUS_ON_NODE")) or _listed(environ.get("SLURM_JOB_GPUS")),
        cyclic=environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic") and not _in_step(environ),
        restarts=_number(environ.get("SLURM_RESTART_COUNT")) or 0,
        notes=tuple(notes),
    )  # fmt: skip


def _check_alone(environ: Mapping[str, str], job: str) -> None:
    """Raise InputError inside of `srun -n4 ddlrun ...`: each task would launch a job of its own."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if environ.get("SLURM_PROCID") and tasks != "1" and _in_step(environ):
        raise InputError(
            f"Slurm job {job}: srun starts ddlrun {tasks} times, once a task; call `ddlrun launch` in the batch script "
            "itself, without srun (it starts the ranks on all hosts)"
        )


def _in_step(environ: Mapping[str, str]) -> bool:
    """Tell whether srun has started us; salloc's own shell, a step with a number beyond all others, is none."""
    number = environ.get("SLURM_STEP_ID", "")
    return number.isdecimal() and len(number) < 10


def _groups(environ: Mapping[str, str]) -> list[str]:
    """Return the endings of a heterogeneous job's variables; empty for a plain one."""
    for size, ending in (("SLURM_HET_SIZE", "_HET_GROUP_"), ("SLURM_PACK_SIZE", "_PACK_GROUP_")):
        parts = _number(environ.get(size)) or 1
        if parts > 1:
            return [f"{ending}{number}" for number in range(parts)]
    return []


def _hosts(world: World, job: str) -> tuple[list[Host], str]:
    environ = world.environ
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") and environ.get("SLURM_HOSTFILE"):
        path = environ["SLURM_HOSTFILE"]
        counted = parse_nodefile(world.read(path), f"SLURM_HOSTFILE {path}")
        return [Host(*one) for one in counted.items()], f"SLURM_HOSTFILE {path}"
    found: dict[str, int | None] = {}
    for ending in _groups(environ) or [""]:
        for name, tasks in _group(environ, job, ending):
            found[name] = tasks + (found.get(name) or 0) if tasks else found.get(name)
    return [Host(*one) for one in found.items()], "SLURM_JOB_NODELIST"


def _group(environ: Mapping[str, str], job: str, ending: str) -> list[tuple[str, int | None]]:
    variable = f"SLURM_JOB_NODELIST{ending}"
    nodelist = environ.get(variable) or environ.get(f"SLURM_NODELIST{ending}")
    if not nodelist:
        raise InputError(f"Slurm job {job}: {variable} is not set; name the hosts: -H, or --scheduler none")
    names = parse_hosts(nodelist, variable).names
    asked = any(environ.get(f"{name}{ending}") for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"))
    text = environ.get(f"SLURM_TASKS_PER_NODE{ending}")
    # Else Slurm says one task a node, and nobody has asked for that; inside `srun --pty` it says the step's.
    if not asked or not text or _in_step(environ):
        return [(name, None) for name in names]
    counts = list(parse_tasks(text, f"SLURM_TASKS_PER_NODE{ending}"))
    if len(counts) != len(names):
        raise InputError(
            f"Slurm job {job}: SLURM_TASKS_PER_NODE{ending} {text!r} is of {len(counts)} hosts, but {variable} "
            f"{nodelist!r} has {len(names)}; name the hosts: -H, or --scheduler none"
        )
    return list(zip(names, counts, strict=True))


def parse_tasks(text: str, where: str) -> Iterator[int]:
    """Parse SLURM_TASKS_PER_NODE. Raises InputError on what is no such list.

    >>> list(parse_tasks("2(x3),1", "tasks"))
    [2, 2, 2, 1]
    """
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part)
        if not match or int(match[2] or 1) > MOST_TASKS:
            raise InputError(f"{where} {text!r}: {part!r} is no number of tasks; it is written as in 2(x3),1")
        yield from [int(match[1])] * int(match[2] or 1)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 6 else None


def _listed(text: str | None) -> int | None:
    return len(text.split(",")) if text else None


def read_racks(world: World) -> dict[str, str]:
    """Return the rack of each host that Slurm's topology knows: `scontrol show topology`, else topology.conf."""
    said = world.ask(TOPOLOGY)
    if said is None:
        folder = world.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf").rpartition("/")[0]
        try:
            said = world.read(f"{folder}/topology.conf")
        except InputError:
            return {}
    return parse_topology_lines(said)


def parse_topology_lines(text: str) -> dict[str, str]:
    r"""Return host -> rack: the switch, or the block, that it hangs on; of several the first.

    Switches above others (with Switches=) are no racks. A line that is not understood says nothing.

    >>> parse_topology_lines("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Nodes=n[1-2] Switches=s0")
    {'n1': 's0', 'n2': 's0'}
    """
    racks: dict[str, str] = {}
    for line in text.splitlines():
        words = {
            key.lower(): value for key, _, value in (word.partition("=") for word in line.partition("#")[0].split())
        }
        name = words.get("switchname") or words.get("blockname")
        if name and words.get("nodes") and not words.get("switches") and words.get("level", "0") == "0":
            try:
                hosts = parse_hosts(words["nodes"]).names
            except InputError:
                continue
            for host in hosts:
                racks.setdefault(host, name)
    return racks


def parse_end(text: str) -> JobEnd | None:
    """Return how Slurm ends a job whose script still runs, from `scontrol --oneliner show job`; None: it does not.

    >>> parse_end("JobId=7 JobState=COMPLETING Reason=TimeLimit TimeLimit=00:01:00")
    JobEnd(exit_code=124, words='has reached its time limit (00:01:00)')
    """
    words = dict(word.partition("=")[::2] for word in text.split())
    state, reason = words.get("JobState", "RUNNING"), words.get("Reason", "None")
    if state == "TIMEOUT" or (state == "COMPLETING" and reason == "TimeLimit"):
        return JobEnd(TIMED_OUT, f"has reached its time limit ({words.get('TimeLimit', '?')})")
    if state in ("CANCELLED", "COMPLETING"):
        return JobEnd(ENDED, "was cancelled")
    if state in ("NODE_FAIL", "PREEMPTED", "DEADLINE", "REQUEUED", "REQUEUE_HOLD", "REVOKED", "OUT_OF_MEMORY"):
        return JobEnd(ENDED, f"was ended by Slurm: {state}")
    return None
