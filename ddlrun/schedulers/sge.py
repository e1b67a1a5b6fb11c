"""Grid Engine (Sun, Son of, Univa, Altair): PE_HOSTFILE."""

from ddlrun.errors import InputError
from ddlrun.host_names import check_host_name
from ddlrun.hosts import Host, HostList
from ddlrun.schedulers import Allocation, SchedulerContext


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts. Raises InputError where PE_HOSTFILE cannot be read."""
    path, job_id = context.environ["PE_HOSTFILE"], context.environ["JOB_ID"]
    slots = parse_pe_hostfile(context.read_variable_file("PE_HOSTFILE"), f"PE_HOSTFILE {path}")
    hosts = tuple(Host(name, count) for name, count in slots.items())
    return Allocation(
        scheduler="sge",
        job_id=job_id,
        hosts=HostList(hosts, f"Grid Engine job {job_id} ({path})", slots_are_capacity=True),
        launcher="qrsh",
        restarts=1 if context.environ.get("RESTARTED") == "1" else 0,
    )


def parse_pe_hostfile(text: str, where: str) -> dict[str, int]:
    r"""Return the slots of each host from lines of name, slots, queue and processors; slots of a host add up.

    Raises InputError with a malformed line.

    >>> parse_pe_hostfile("a 4 all.q@a UNDEFINED\na 1 b.q@a UNDEFINED", "PE_HOSTFILE")
    {'a': 5}
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        place = f"{where}, line {number}"
        if len(words) < 2 or not words[1].isdecimal() or not int(words[1]):
            raise InputError(
                f"{place}: {line!r} is not a host and its slots; a line is: node01 4 all.q@node01 UNDEFINED"
            )
        name = check_host_name(words[0], place)
        slots[name] = slots.get(name, 0) + int(words[1])
    return slots
