"""LSF: LSB_DJOB_HOSTFILE and what stands beside it, and the racks of its compute units."""

import re
from collections.abc import Mapping

from ddlrun.errors import InputError
from ddlrun.hosts import HostList, check_host_name
from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import count_hosts, parse_nodefile, with_slots

FILES = ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE", "LSB_AFFINITY_HOSTFILE")
UNITS = ("bmgroup", "-cu", "-w")
LAUNCH_HOST = r"(batch|login|launch|service)[-_0-9]*"


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts with their slots and racks, without the host that only launches.

    Raises InputError where no variable says them, or a file is not there.
    """
    environ = world.environ
    job = environ["LSB_JOBID"]
    if environ.get("LSB_JOBINDEX", "0") != "0":
        job = f"{job}[{environ['LSB_JOBINDEX']}]"
    slots, source = _slots(world, job)
    notes = []
    launch_host = _launch_host(slots, environ)
    if launch_host:
        del slots[launch_host]
        notes.append(f"{launch_host} only launches: no rank goes there")
    found = with_slots(slots, f"LSF job {job} ({source})")
    units = parse_units(world.ask(UNITS) or "")
    hosts = tuple(host._replace(rack=units.get(host.name, units.get(host.name.partition(".")[0]))) for host in found)
    return Allocation(
        "lsf", job, HostList(hosts, found.source, slots_are_capacity=True), launcher="blaunch",
        restarts=int(environ.get("LSB_RESTART") == "Y"), notes=tuple(notes),
    )  # fmt: skip


def _slots(world: SchedulerContext, job: str) -> tuple[dict[str, int], str]:
    """Return the slots and what said so: a file before a list, as lists may be cut; a list where no file is there."""
    environ = world.environ
    unread = None
    for name in FILES:
        try:
            if path := environ.get(name):
                text = world.file(name)
                return parse_nodefile(_names(text) if name == FILES[-1] else text, f"{name} {path}"), f"{name} {path}"
        except InputError as error:
            unread = unread or error
    if words := environ.get("LSB_MCPU_HOSTS", "").split():
        return parse_mcpu(words), "LSB_MCPU_HOSTS"
    if words := environ.get("LSB_HOSTS", "").split():
        return count_hosts(check_host_name(word, "LSB_HOSTS") for word in words), "LSB_HOSTS"
    raise unread or InputError(
        f"LSF job {job}: none of LSB_DJOB_HOSTFILE, LSB_DJOB_RANKFILE, LSB_MCPU_HOSTS and LSB_HOSTS is set; "
        "name the hosts: -H, or --scheduler none"
    )


def _names(text: str) -> str:
    """Return the first word of each line: the host, before its CPUs."""
    return "\n".join(line.split()[0] if line.split() else "" for line in text.splitlines())


def parse_mcpu(words: list[str]) -> dict[str, int]:
    """Return slots by host of LSB_MCPU_HOSTS. Raises InputError on what is no pairs.

    >>> parse_mcpu("hostA 4 hostB 2 hostA 1".split())
    {'hostA': 5, 'hostB': 2}
    """
    slots: dict[str, int] = {}
    for name, count in zip(words[::2], (*words[1::2], ""), strict=False):
        if not count.isdecimal() or not int(count):
            raise InputError(f"LSB_MCPU_HOSTS: {name!r} has no number of slots after it; it is: hostA 4 hostB 4")
        check_host_name(name, "LSB_MCPU_HOSTS")
        slots[name] = slots.get(name, 0) + int(count)
    return slots


def _launch_host(slots: Mapping[str, int], environ: Mapping[str, str]) -> str | None:
    """Return the host that comes first only because it launches: on machines with CSM, or by its name."""
    first, *others = slots
    if not others or slots[first] != 1:
        return None
    named = bool(re.fullmatch(LAUNCH_HOST, first.partition(".")[0]))
    alike = any(re.fullmatch(LAUNCH_HOST, other.partition(".")[0]) for other in others)
    more = all(slots[other] > 1 for other in others)
    return first if (named and not alike) or ("CSM_ALLOCATION_ID" in environ and more) else None


def parse_units(text: str) -> dict[str, str]:
    r"""Return host -> compute unit from what `bmgroup -cu -w` prints; of several levels the finest.

    >>> parse_units("NAME TYPE HOSTS\nencl1 enclosure hostA hostB\nrack1 rack encl1")
    {'hostA': 'encl1', 'hostB': 'encl1'}
    """
    rows = [line.split() for line in text.splitlines()[1:]]
    members = {row[0]: [name.rstrip("/") for name in row[2:]] for row in rows if len(row) > 2}
    return {host: unit for unit, hosts in reversed(members.items()) for host in hosts if host not in members}
