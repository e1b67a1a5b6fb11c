"""Grid Engine (Sun, Son of, Univa, Altair): PE_HOSTFILE."""

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, check_host_name
from ddlrun.schedulers import Allocation, SchedulerContext


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts: name, slots, queue and processors a line; slots of one host add up.

    Raises InputError with the line that is not so.
    """
    path, job = world.environ["PE_HOSTFILE"], world.environ["JOB_ID"]
    slots: dict[str, int] = {}
    for number, line in enumerate(world.file("PE_HOSTFILE").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        where = f"PE_HOSTFILE {path}, line {number}"
        if len(words) < 2 or not words[1].isdecimal() or not int(words[1]):
            raise InputError(f"{where}: {line!r} is no host with its slots; a line is: node01 4 all.q@node01 UNDEFINED")
        name = check_host_name(words[0], where)
        slots[name] = slots.get(name, 0) + int(words[1])
    hosts = HostList(tuple(Host(*one) for one in slots.items()), f"Grid Engine job {job} ({path})", slots_are_capacity=True)
    return Allocation("sge", job, hosts, launcher="qrsh", restarts=int(world.environ.get("RESTARTED") == "1"))
