"""Flux: `flux hostlist`."""

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, fold, parse_host_words
from ddlrun.schedulers import NAME_HOSTS, Allocation, SchedulerContext
from ddlrun.schedulers.nodefile import count_hosts

COMMAND = ("flux", "hostlist", "local")


def read(context: SchedulerContext) -> Allocation:
    """Return the job's hosts, or those of the Flux instance that a batch script runs in.

    Raises InputError where flux does not list them, or where each task of the job has started ddlrun.
    """
    environ = context.environ
    job_id = environ.get("FLUX_JOB_ID") or environ["FLUX_ENCLOSING_ID"]
    if environ.get("FLUX_TASK_RANK", "0") != "0" or environ.get("FLUX_JOB_SIZE", "1") != "1":
        raise InputError(
            f"Flux job {job_id} runs ddlrun {environ.get('FLUX_JOB_SIZE', 'several')} times, once per task; "
            "start it once: flux batch or flux alloc, with ddlrun launch in the script"
        )
    command = " ".join(COMMAND)
    hostlist = (context.query(COMMAND) or "").strip()
    if not hostlist:
        raise InputError(f"Flux job {job_id}: `{command}` gives no hosts; {NAME_HOSTS}")
    source = f"Flux job {job_id} ({command})"
    brokers = count_hosts(host.name for host in parse_host_words(hostlist, source))
    hosts = HostList(tuple(map(Host, brokers)), source)
    expected = environ.get("FLUX_JOB_NNODES")
    if expected and expected != str(sum(brokers.values())):
        raise InputError(
            f"{source}: {sum(brokers.values())} hosts ({hosts}), but FLUX_JOB_NNODES is {expected}; name the hosts "
            "with `-H`"
        )
    several = [name for name, count in brokers.items() if count > 1]
    note = f"Flux runs several brokers on {fold(several)}: each counts as one host"
    return Allocation(scheduler="flux", job_id=job_id, hosts=hosts, notes=(note,) if several else ())
