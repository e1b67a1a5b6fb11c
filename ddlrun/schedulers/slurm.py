"""Slurm: the environment of sbatch, salloc and srun."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import parse_nodefile
from ddlrun.schedulers.scontrol import SlurmJobDetails, read_details, read_racks

MOST_TASKS = 1_000_000


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts with their tasks and racks.

    Raises InputError on variables that are missing or contradict each other, and where srun has started us
    once a task.
    """
    environ = world.environ
    job = environ.get("SLURM_JOB_ID") or environ["SLURM_JOBID"]
    _check_alone(environ, job)
    hosts, source = _hosts(world, job)
    details = read_details(world, job)
    several = bool(_groups(environ))
    plain = not several and not environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    hosts, more = _evened(hosts, details, in_step=_in_step(environ)) if plain else (hosts, [])
    racks = read_racks(world)
    if racks is None:
        more = [*more, "Slurm does not say its topology (scontrol show topology fails): all hosts count as one rack"]
        racks = {}
    placed = tuple(host._replace(rack=racks.get(host.name)) for host in hosts)
    if several:
        more = [*more, "a heterogeneous job: daemons are started by ssh, as srun would start them in one part alone"]
    return Allocation(
        "slurm", job, HostList(placed, f"Slurm job {job} ({source})"),
        launcher="ssh" if several else "srun",
        gpus=_gpus(environ, details, [host.name for host in hosts]),
        gpu_numbers=details.gpus,
        cyclic=environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic") and not _in_step(environ),
        restarts=_number(environ.get("SLURM_RESTART_COUNT")) or 0,
        notes=tuple(more),
    )  # fmt: skip


def _evened(hosts: list[Host], details: SlurmJobDetails, *, in_step: bool) -> tuple[list[Host], list[str]]:
    """Take the tasks that Slurm spread unevenly as equally many on each host; inside of a step take the job's."""
    slots = [host.slots for host in hosts]
    known = [count for count in slots if count is not None]
    if in_step and details.tasks_per_node and not known:
        return [host._replace(slots=details.tasks_per_node) for host in hosts], []
    each, left = divmod(sum(known), len(hosts)) if hosts else (0, 1)
    if len(known) < len(hosts) or len({*known}) == 1 or left:
        return hosts, []
    said = ", ".join(map(str, known[:8]))
    note = f"Slurm spread {sum(known)} tasks as {said}: taken as {each} on each host (sbatch --ntasks-per-node={each})"
    return [host._replace(slots=each) for host in hosts], [note]


def _gpus(environ: Mapping[str, str], details: SlurmJobDetails, names: list[str]) -> int | None:
    """Return how many GPUs each host has in the job; None: nobody says, or they differ."""
    if details.gpus:
        counts = {len(details.gpus[name].split(",")) if name in details.gpus else 0 for name in names}
        return counts.pop() if len(counts) == 1 else None
    return _number(environ.get("SLURM_GPUS_ON_NODE")) or _listed(environ.get("SLURM_JOB_GPUS"))


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


def _hosts(world: SchedulerContext, job: str) -> tuple[list[Host], str]:
    environ = world.environ
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") and environ.get("SLURM_HOSTFILE"):
        path = environ["SLURM_HOSTFILE"]
        counted = parse_nodefile(world.file("SLURM_HOSTFILE"), f"SLURM_HOSTFILE {path}")
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
