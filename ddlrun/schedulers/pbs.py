"""PBS Professional, OpenPBS and Torque: PBS_NODEFILE."""

from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import parse_nodefile, with_slots


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts: a line of PBS_NODEFILE is a slot. Raises InputError on a file that is not there."""
    text = world.file("PBS_NODEFILE")
    path, job = world.environ["PBS_NODEFILE"], world.environ["PBS_JOBID"]
    hosts = with_slots(parse_nodefile(text, f"PBS_NODEFILE {path}"), f"PBS job {job} ({path})")
    return Allocation("pbs", job, hosts)
