"""LSF: the host files and host lists of a job, and racks from compute units."""

import re
from collections.abc import Mapping

from ddlrun.errors import InputError
from ddlrun.host_names import check_host_name
from ddlrun.hosts import HostList
from ddlrun.schedulers import NAME_HOSTS, Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import count_hosts, make_host_list, parse_nodefile

FILES = ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE", "LSB_AFFINITY_HOSTFILE")
COMPUTE_UNITS = ("bmgroup", "-cu", "-w")
LAUNCH_HOST = r"(batch|login|launch|service)[-_0-9]*"


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts with their slots and racks, without a host that only launches.

    Raises InputError where no variable gives the hosts, or a file cannot be read.
    """
    environ = context.environ
    job_id = environ["LSB_JOBID"]
    if environ.get("LSB_JOBINDEX", "0") != "0":
        job_id = f"{job_id}[{environ['LSB_JOBINDEX']}]"
    slots, source = _read_slots(context, job_id)
    notes: tuple[str, ...] = ()
    launch_host = _find_launch_host(slots, environ)
    if launch_host:
        del slots[launch_host]
        notes = (f"{launch_host} only launches: it gets no rank",)
    hosts = make_host_list(slots, f"LSF job {job_id} ({source})")
    return Allocation(
        scheduler="lsf",
        job_id=job_id,
        hosts=_add_racks(hosts, parse_compute_units(context.query(COMPUTE_UNITS) or "")),
        launcher="blaunch",
        restarts=1 if environ.get("LSB_RESTART") == "Y" else 0,
        notes=notes,
    )


def _add_racks(hosts: HostList, units: Mapping[str, str]) -> HostList:
    """Return the hosts with their compute units as racks; bmgroup may list a host by its short name."""
    return hosts.take(
        host._replace(rack=units.get(host.name, units.get(host.name.partition(".")[0]))) for host in hosts
    )


def _read_slots(context: SchedulerContext, job_id: str) -> tuple[dict[str, int], str]:
    """Return the slots of each host and their source: a file first, as lists may be cut; a list where no file is."""
    environ = context.environ
    file_error = None
    for name in FILES:
        try:
            if path := environ.get(name):
                text = context.read_variable_file(name)
                lines = _first_words(text) if name == "LSB_AFFINITY_HOSTFILE" else text
                return parse_nodefile(lines, f"{name} {path}"), f"{name} {path}"
        except InputError as error:
            file_error = file_error or error
    if words := environ.get("LSB_MCPU_HOSTS", "").split():
        return parse_mcpu(words), "LSB_MCPU_HOSTS"
    if words := environ.get("LSB_HOSTS", "").split():
        return count_hosts(check_host_name(word, "LSB_HOSTS") for word in words), "LSB_HOSTS"
    raise file_error or InputError(
        f"LSF job {job_id}: none of LSB_DJOB_HOSTFILE, LSB_DJOB_RANKFILE, LSB_MCPU_HOSTS and LSB_HOSTS is set; "
        f"{NAME_HOSTS}"
    )


def _first_words(text: str) -> str:
    """Return the first word of each line: the host, without its CPUs."""
    return "\n".join(line.split()[0] if line.split() else "" for line in text.splitlines())


def parse_mcpu(words: list[str]) -> dict[str, int]:
    """Return the slots of each host from LSB_MCPU_HOSTS. Raises InputError where a host has no number.

    >>> parse_mcpu("hostA 4 hostB 2 hostA 1".split())
    {'hostA': 5, 'hostB': 2}
    """
    slots: dict[str, int] = {}
    for name, count in zip(words[::2], (*words[1::2], ""), strict=False):
        if not count.isdecimal() or not int(count):
            raise InputError(f"LSB_MCPU_HOSTS: {name!r} has no number of slots after it; expected: hostA 4 hostB 4")
        check_host_name(name, "LSB_MCPU_HOSTS")
        slots[name] = slots.get(name, 0) + int(count)
    return slots


def _find_launch_host(slots: Mapping[str, int], environ: Mapping[str, str]) -> str | None:
    """Return the host that is listed first only because it launches: on machines with CSM, or judging by its name."""
    if len(slots) < 2:
        return None
    first, *others = slots
    if slots[first] != 1:
        return None
    has_launch_name = bool(re.fullmatch(LAUNCH_HOST, first.partition(".")[0]))
    others_have = any(re.fullmatch(LAUNCH_HOST, other.partition(".")[0]) for other in others)
    others_have_more_slots = all(slots[other] > 1 for other in others)
    if has_launch_name and not others_have:
        return first
    return first if "CSM_ALLOCATION_ID" in environ and others_have_more_slots else None


def parse_compute_units(text: str) -> dict[str, str]:
    r"""Return the compute unit of each host from the output of `bmgroup -cu -w`; of several levels the finest.

    >>> parse_compute_units("NAME TYPE HOSTS\nencl1 enclosure hostA hostB\nrack1 rack encl1")
    {'hostA': 'encl1', 'hostB': 'encl1'}
    """
    rows = [line.split() for line in text.splitlines()[1:]]
    members = {row[0]: [name.rstrip("/") for name in row[2:]] for row in rows if len(row) > 2}
    return {host: unit for unit, hosts in reversed(members.items()) for host in hosts if host not in members}
