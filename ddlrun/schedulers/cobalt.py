"""Cobalt: COBALT_NODEFILE."""

from ddlrun.hosts import Host, HostList
from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import parse_nodefile


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts: COBALT_NODEFILE has one line per host. Raises InputError where it cannot be read."""
    text = context.read_variable_file("COBALT_NODEFILE")
    path, job_id = context.environ["COBALT_NODEFILE"], context.environ["COBALT_JOBID"]
    names = parse_nodefile(text, f"COBALT_NODEFILE {path}")
    hosts = HostList(tuple(map(Host, names)), f"Cobalt job {job_id} ({path})")
    return Allocation(scheduler="cobalt", job_id=job_id, hosts=hosts)
