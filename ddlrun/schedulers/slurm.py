"""Slurm: the environment of sbatch, salloc and srun."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddlrun.errors import InputError
from ddlrun.host_names import check_host_name
from ddlrun.hosts import Host, HostList, parse_hosts
from ddlrun.schedulers import NAME_HOSTS, Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import count_hosts
from ddlrun.schedulers.scontrol import SlurmJobDetails, read_details, read_racks

MOST_TASKS = 1_000_000


@dataclass(frozen=True, slots=True)
class SlurmHosts:
    """The hosts of a job with their tasks, and where they come from."""

    hosts: list[Host]
    source: str
    cyclic: bool = False
    """The tasks are distributed round robin."""
    notes: tuple[str, ...] = ()


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts with their tasks and racks.

    Raises InputError where variables are missing or contradict each other, and where srun has started ddlrun
    once per task.
    """
    environ = context.environ
    job_id = environ.get("SLURM_JOB_ID") or environ["SLURM_JOBID"]
    _check_started_once(environ, job_id)
    details = read_details(context, job_id)
    racks = read_racks(context)
    heterogeneous = bool(_group_suffixes(environ))
    job = _read_host_file(context, job_id) if environ.get("SLURM_HOSTFILE") else _read_hosts(environ, job_id, details)
    placed = tuple(host._replace(rack=racks.get(host.name) if racks else None) for host in job.hosts)
    return Allocation(
        scheduler="slurm",
        job_id=job_id,
        hosts=HostList(placed, f"Slurm job {job_id} ({job.source})"),
        launcher="ssh" if heterogeneous else "srun",
        gpus=_gpus_per_host(environ, details, [host.name for host in job.hosts]),
        gpu_numbers=details.gpu_numbers,
        cyclic=job.cyclic,
        restarts=_parse_number(environ.get("SLURM_RESTART_COUNT")) or 0,
        notes=(*job.notes, *_notes(has_topology=racks is not None, heterogeneous=heterogeneous)),
    )


def _notes(*, has_topology: bool, heterogeneous: bool) -> Iterator[str]:
    if not has_topology:
        yield "Slurm does not report its topology (scontrol show topology fails): all hosts count as one rack"
    if heterogeneous:
        yield "a heterogeneous job: daemons are started by ssh, as srun would start them in one component only"


def _even_out(hosts: SlurmHosts, environ: Mapping[str, str], details: SlurmJobDetails) -> SlurmHosts:
    """Spread tasks evenly, with a note, where Slurm spread them unevenly and each host has CPUs and GPUs for that."""
    counts = [host.slots for host in hosts.hosts if host.slots is not None]
    if not counts or len(counts) < len(hosts.hosts) or len(set(counts)) == 1:
        return hosts
    total = sum(counts)
    each, rest = divmod(total, len(counts))
    needed = each * (_parse_number(environ.get("SLURM_CPUS_PER_TASK")) or 1)
    cpus = list(parse_tasks(environ.get("SLURM_JOB_CPUS_PER_NODE") or f"{needed}", "SLURM_JOB_CPUS_PER_NODE"))
    if rest or min(cpus) < needed or len(_gpu_counts(details, [host.name for host in hosts.hosts])) > 1:
        return hosts
    spread = ", ".join(map(str, counts[:8]))
    note = f"Slurm spread {total} tasks as {spread}: ddlrun uses {each} on each host (sbatch --ntasks-per-node={each})"
    return replace(hosts, hosts=[host._replace(slots=each) for host in hosts.hosts], notes=(*hosts.notes, note))


def _gpu_counts(details: SlurmJobDetails, names: Sequence[str]) -> set[int]:
    """Return the numbers of GPUs that hosts have in the job; empty where they are not known."""
    if not details.gpu_numbers:
        return set()
    return {len(details.gpu_numbers[name].split(",")) if name in details.gpu_numbers else 0 for name in names}


def _gpus_per_host(environ: Mapping[str, str], details: SlurmJobDetails, names: Sequence[str]) -> int | None:
    """Return the number of GPUs that each host has in the job; None where it is not known, or hosts differ."""
    counts = _gpu_counts(details, names)
    if counts:
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


def _read_hosts(environ: Mapping[str, str], job_id: str, details: SlurmJobDetails) -> SlurmHosts:
    """Return the job's hosts; one of several components appears once, with all its tasks."""
    suffixes = _group_suffixes(environ)
    slots: dict[str, int | None] = {}
    for suffix in suffixes or [""]:
        for name, tasks in _read_group(environ, job_id, suffix):
            slots[name] = tasks + (slots.get(name) or 0) if tasks else slots.get(name)
    if _in_step(environ) and not suffixes and not any(slots.values()):
        slots = dict.fromkeys(slots, details.tasks_per_node)
    hosts = SlurmHosts(hosts=[Host(name, count) for name, count in slots.items()], source="SLURM_JOB_NODELIST")
    if not suffixes and not environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        hosts = _even_out(_spread_requested(hosts, environ), environ, details)
    return hosts if _in_step(environ) else _distribute(hosts, environ)


def _spread_requested(hosts: SlurmHosts, environ: Mapping[str, str]) -> SlurmHosts:
    """Return the tasks that SLURM_NTASKS requests, as srun spreads them, where --ntasks-per-node alone means more."""
    counts = {host.slots for host in hosts.hosts}
    each, rest = divmod(_parse_number(environ.get("SLURM_NTASKS")) or 0, len(hosts.hosts))
    if not each or len(counts) != 1 or each >= (counts.pop() or 0):
        return hosts
    spread = [host._replace(slots=each + 1 if place < rest else each) for place, host in enumerate(hosts.hosts)]
    note = f"SLURM_NTASKS is {environ['SLURM_NTASKS']}: ddlrun spreads the tasks as srun does, not --ntasks-per-node"
    return replace(hosts, hosts=spread, notes=(note,))


def _distribute(hosts: SlurmHosts, environ: Mapping[str, str]) -> SlurmHosts:
    """Return the hosts with the order of SLURM_DISTRIBUTION, and a note where the ranks of a host are consecutive."""
    distribution = re.split("[:,=]", environ.get("SLURM_DISTRIBUTION", ""))[0]
    plane = _parse_number(environ.get("SLURM_DIST_PLANESIZE")) if distribution == "plane" else None
    counts = {host.slots for host in hosts.hosts}
    cyclic = distribution == "cyclic" or plane == 1
    if cyclic and len(counts) > 1:
        reason = "hosts have different numbers of tasks"
    elif not cyclic and plane and len(hosts.hosts) > 1 and plane < max(count or 0 for count in counts):
        reason = f"planes of {plane} tasks are not supported"
    else:
        return replace(hosts, cyclic=cyclic)
    note = f"SLURM_DISTRIBUTION is {distribution}, but the ranks of a host are consecutive: {reason}"
    return replace(hosts, cyclic=cyclic, notes=(*hosts.notes, note))


def _read_host_file(context: SchedulerContext, job_id: str) -> SlurmHosts:
    """Return the hosts of SLURM_HOSTFILE, which srun prefers to any distribution: the first names, one per task.

    Raises InputError where the file names too few hosts, or others than the job's.
    """
    environ = context.environ
    source = f"SLURM_HOSTFILE {environ['SLURM_HOSTFILE']}"
    names = parse_host_file(context.read_variable_file("SLURM_HOSTFILE"), source)
    tasks = _parse_number(environ.get("SLURM_NTASKS"))
    if tasks and len(names) < tasks and not _in_step(environ):
        raise InputError(f"{source} has {len(names)} hosts for {tasks} tasks; add some, or unset SLURM_HOSTFILE")
    names = names[: None if _in_step(environ) else tasks]
    counts = count_hosts(names)
    suffixes = _group_suffixes(environ) or [""]
    allocated = {name for suffix in suffixes for name, _ in _read_group(environ, job_id, suffix)}
    foreign = next((name for name in counts if name not in allocated), None)
    if foreign:
        raise InputError(f"{source}: {foreign} is not a host of Slurm job {job_id}; correct it or unset SLURM_HOSTFILE")
    turns = range(max(counts.values(), default=0))
    in_turn = names == [name for turn in turns for name, count in counts.items() if turn < count]
    note = f"{source}: the ranks of a host are consecutive, unlike in the file"
    in_order = in_turn or names == [name for name, count in counts.items() for _ in range(count)]
    return SlurmHosts(
        hosts=[Host(name, count) for name, count in counts.items()],
        source=source,
        cyclic=in_turn and len(names) > len(counts) > 1,
        notes=() if in_order else (note,),
    )


def parse_host_file(text: str, where: str) -> list[str]:
    r"""Return the host of each task from SLURM_HOSTFILE. Raises InputError with the line of an invalid name.

    >>> parse_host_file("b,a*2  # comment\nb\n", "SLURM_HOSTFILE")
    ['b', 'a', 'a', 'b']
    """
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].replace(",", " ").split():
            name, _, count = word.partition("*")
            times = _parse_number(count or "1")
            names += [check_host_name(name if times else word, f"{where}, line {number}")] * (times or 1)
    return names


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
