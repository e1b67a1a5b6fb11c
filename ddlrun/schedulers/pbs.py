"""PBS Professional, OpenPBS and Torque: PBS_NODEFILE."""

from ddlrun.schedulers import Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import make_host_list, parse_nodefile


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts: PBS_NODEFILE has one line per slot. Raises InputError where it cannot be read."""
    text = context.read_variable_file("PBS_NODEFILE")
    path, job_id = context.environ["PBS_NODEFILE"], context.environ["PBS_JOBID"]
    hosts = make_host_list(parse_nodefile(text, f"PBS_NODEFILE {path}"), f"PBS job {job_id} ({path})")
    return Allocation(scheduler="pbs", job_id=job_id, hosts=hosts)
