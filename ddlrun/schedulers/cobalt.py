"""Cobalt: COBALT_NODEFILE."""

from ddlrun.hosts import Host, HostList
from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import parse_nodefile


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts: a line of COBALT_NODEFILE is a host. Raises InputError on a file that is not there."""
    text = world.file("COBALT_NODEFILE")
    path, job = world.environ["COBALT_NODEFILE"], world.environ["COBALT_JOBID"]
    names = parse_nodefile(text, f"COBALT_NODEFILE {path}")
    return Allocation("cobalt", job, HostList(tuple(map(Host, names)), f"Cobalt job {job} ({path})"))
