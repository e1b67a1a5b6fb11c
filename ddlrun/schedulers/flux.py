"""Flux: `flux hostlist`."""

from ddlrun.errors import InputError
from ddlrun.hosts import parse_hosts
from ddlrun.schedulers import Allocation, SchedulerContext

COMMAND = ("flux", "hostlist", "local")


def read(world: SchedulerContext) -> Allocation:
    """Return the job's hosts, or those of the Flux instance that a batch script runs in.

    Raises InputError where flux does not say them, or where each task of a job has started us.
    """
    environ = world.environ
    job = environ.get("FLUX_JOB_ID") or environ["FLUX_ENCLOSING_ID"]
    if environ.get("FLUX_TASK_RANK", "0") != "0" or environ.get("FLUX_JOB_SIZE", "1") != "1":
        raise InputError(
            f"Flux job {job} runs ddlrun {environ.get('FLUX_JOB_SIZE', 'several')} times, as it has so many tasks; "
            "start it once: flux batch or flux alloc, with ddlrun launch in the script"
        )
    said = world.ask(COMMAND)
    if said is None or not said.strip():
        raise InputError(f"Flux job {job}: `{' '.join(COMMAND)}` gives no hosts; name them: -H, or --scheduler none")
    hosts = parse_hosts(said.strip(), f"Flux job {job} ({' '.join(COMMAND)})")
    expected = environ.get("FLUX_JOB_NNODES")
    if expected and expected != str(len(hosts)):
        raise InputError(
            f"{hosts.source}: {len(hosts)} hosts ({hosts}), but FLUX_JOB_NNODES is {expected}; name them: -H"
        )
    return Allocation("flux", job, hosts)
