"""Kubernetes MPI operator, v1 and v2: the hostfile that it mounts into the launcher."""

from ddlrun.environment import open_mpi
from ddlrun.hosts import HostList, parse_hostfile
from ddlrun.schedulers import Allocation, SchedulerContext

# Those of Open MPI 4 and 5, Intel MPI and MPICH: spec.mpiImplementation chooses.
HOSTFILES = (*open_mpi.HOSTFILES, "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")


def read(context: SchedulerContext) -> Allocation:
    """Return the workers by their full names. Raises InputError where the hostfile is missing or malformed."""
    environ = context.environ
    variable = next(name for name in HOSTFILES if environ.get(name))
    path = environ[variable]
    job_id = (environ.get("K_MPI_JOB_ROLE", "") and environ.get("HOSTNAME", "").partition("-launcher")[0]) or path
    workers = parse_hostfile(context.read_variable_file(variable), f"hostfile {path}")
    # Version 1 of the operator starts daemons through the API server: its pods have neither sshd nor resolvable names.
    agent = next((environ[name] for name in open_mpi.AGENTS if environ.get(name)), "")
    launcher = "agent" if agent.partition(" ")[0].endswith("kubexec.sh") else "ssh"
    hosts = HostList(workers.hosts, f"Kubernetes ({path})")
    return Allocation(scheduler="kubernetes", job_id=job_id, hosts=hosts, launcher=launcher)
