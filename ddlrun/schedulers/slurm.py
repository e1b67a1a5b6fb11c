"""Slurm: the environment of sbatch, salloc and srun."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.schedulers import NAME_HOSTS, Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import parse_nodefile
from ddlrun.schedulers.scontrol import SlurmJobDetails, read_details, read_racks

MOST_TASKS = 1_000_000


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts with their tasks and racks.

    Raises InputError where variables are missing or contradict each other, and where srun has started ddlrun
    once per task.
    """
    environ = context.environ
    job_id = environ.get("SLURM_JOB_ID") or environ["SLURM_JOBID"]
    _check_started_once(environ, job_id)
    hosts, source = _read_hosts(context, job_id)
    details = read_details(context, job_id)
    racks = read_racks(context)
    heterogeneous = bool(_group_suffixes(environ))
    even_notes: list[str] = []
    if not heterogeneous and not _is_arbitrary(environ):
        hosts, even_notes = _even_out(hosts, details, in_step=_in_step(environ))
    placed = tuple(host._replace(rack=racks.get(host.name) if racks else None) for host in hosts)
    return Allocation(
        scheduler="slurm",
        job_id=job_id,
        hosts=HostList(placed, f"Slurm job {job_id} ({source})"),
        launcher="ssh" if heterogeneous else "srun",
        gpus=_gpus_per_host(environ, details, [host.name for host in hosts]),
        gpu_numbers=details.gpu_numbers,
        cyclic=environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic") and not _in_step(environ),
        restarts=_parse_number(environ.get("SLURM_RESTART_COUNT")) or 0,
        notes=(*even_notes, *_notes(has_topology=racks is not None, heterogeneous=heterogeneous)),
    )


def _notes(*, has_topology: bool, heterogeneous: bool) -> Iterator[str]:
    if not has_topology:
        yield "Slurm does not report its topology (scontrol show topology fails): all hosts count as one rack"
    if heterogeneous:
        yield "a heterogeneous job: daemons are started by ssh, as srun would start them in one component only"


def _is_arbitrary(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")


def _even_out(hosts: list[Host], details: SlurmJobDetails, *, in_step: bool) -> tuple[list[Host], list[str]]:
    """Spread tasks evenly where Slurm spread them unevenly, with a note; inside a step use the job's tasks per node."""
    counts = [host.slots for host in hosts if host.slots is not None]
    if in_step and details.tasks_per_node and not counts:
        return [host._replace(slots=details.tasks_per_node) for host in hosts], []
    if not counts or len(counts) < len(hosts) or len(set(counts)) == 1:
        return hosts, []
    total = sum(counts)
    each, rest = divmod(total, len(hosts))
    if rest:
        return hosts, []
    spread = ", ".join(map(str, counts[:8]))
    note = f"Slurm spread {total} tasks as {spread}: ddlrun uses {each} on each host (sbatch --ntasks-per-node={each})"
    return [host._replace(slots=each) for host in hosts], [note]


def _gpus_per_host(environ: Mapping[str, str], details: SlurmJobDetails, names: list[str]) -> int | None:
    """Return the number of GPUs that each host has in the job; None where it is not known, or hosts differ."""
    if details.gpu_numbers:
        counts = {len(details.gpu_numbers[name].split(",")) if name in details.gpu_numbers else 0 for name in names}
        return counts.pop() if len(counts) == 1 else None
    return _parse_number(environ.get("SLURM_GPUS_ON_NODE")) or _count_items(environ.get("SLURM_JOB_GPUS"))


def _check_started_once(environ: Mapping[str, str], job_id: str) -> None:
    """Raise InputError inside `srun -n4 ddlrun ...`, where each task would launch a job of its own."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if environ.get("SLURM_PROCID") and tasks != "1" and _in_step(environ):
        raise InputError(
            f"Slurm job {job_id}: srun starts ddlrun {tasks} times, once per task; call `ddlrun launch` in the batch "
            "script itself, without srun (it starts the ranks on all hosts)"
        )


def _in_step(environ: Mapping[str, str]) -> bool:
    """Return True if srun has started ddlrun. The shell of salloc, a step with a ten-digit number, does not count."""
    number = environ.get("SLURM_STEP_ID", "")
    return number.isdecimal() and len(number) < 10


def _group_suffixes(environ: Mapping[str, str]) -> list[str]:
    """Return the suffixes of a heterogeneous job's variables, one per component; none for another job."""
    for size, suffix in (("SLURM_HET_SIZE", "_HET_GROUP_"), ("SLURM_PACK_SIZE", "_PACK_GROUP_")):
        groups = _parse_number(environ.get(size)) or 1
        if groups > 1:
            return [f"{suffix}{number}" for number in range(groups)]
    return []


def _read_hosts(context: SchedulerContext, job_id: str) -> tuple[list[Host], str]:
    """Return the job's hosts and their source; a host of several components appears once, with all its tasks."""
    environ = context.environ
    if _is_arbitrary(environ) and environ.get("SLURM_HOSTFILE"):
        source = f"SLURM_HOSTFILE {environ['SLURM_HOSTFILE']}"
        counts = parse_nodefile(context.read_variable_file("SLURM_HOSTFILE"), source)
        return [Host(name, count) for name, count in counts.items()], source
    slots: dict[str, int | None] = {}
    for suffix in _group_suffixes(environ) or [""]:
        for name, tasks in _read_group(environ, job_id, suffix):
            slots[name] = tasks + (slots.get(name) or 0) if tasks else slots.get(name)
    return [Host(name, count) for name, count in slots.items()], "SLURM_JOB_NODELIST"


def _read_group(environ: Mapping[str, str], job_id: str, suffix: str) -> list[tuple[str, int | None]]:
    """Return the hosts of a component with their tasks, None where the user requested no number of tasks."""
    variable = f"SLURM_JOB_NODELIST{suffix}"
    nodelist = environ.get(variable) or environ.get(f"SLURM_NODELIST{suffix}")
    if not nodelist:
        raise InputError(f"Slurm job {job_id}: {variable} is not set; {NAME_HOSTS}")
    names = parse_hosts(nodelist, variable).names
    text = environ.get(f"SLURM_TASKS_PER_NODE{suffix}")
    # Without a request Slurm sets one task per node; inside `srun --pty` the variable is about the step.
    if not _requests_tasks(environ, suffix) or not text or _in_step(environ):
        return [(name, None) for name in names]
    counts = list(parse_tasks(text, f"SLURM_TASKS_PER_NODE{suffix}"))
    if len(counts) != len(names):
        raise InputError(
            f"Slurm job {job_id}: SLURM_TASKS_PER_NODE{suffix} {text!r} has {len(counts)} hosts, but {variable} "
            f"{nodelist!r} has {len(names)}; {NAME_HOSTS}"
        )
    return list(zip(names, counts, strict=True))


def _requests_tasks(environ: Mapping[str, str], suffix: str) -> bool:
    return any(environ.get(f"{name}{suffix}") for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"))


def parse_tasks(text: str, where: str) -> Iterator[int]:
    """Parse SLURM_TASKS_PER_NODE. Raises InputError where it is malformed.

    >>> list(parse_tasks("2(x3),1", "tasks"))
    [2, 2, 2, 1]
    """
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part)
        if not match or int(match[2] or 1) > MOST_TASKS:
            raise InputError(f"{where} {text!r}: {part!r} is not a number of tasks; expected a list such as 2(x3),1")
        yield from [int(match[1])] * int(match[2] or 1)


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 6 else None


def _count_items(text: str | None) -> int | None:
    return len(text.split(",")) if text else None
