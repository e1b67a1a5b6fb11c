"""Kubernetes' MPI operator, v1 and v2: the hostfile that it mounts into the launcher."""

from ddlrun.hosts import HostList, parse_hostfile
from ddlrun.schedulers import Allocation, SchedulerContext

HOSTFILES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
# The operator's first version starts daemons through the API server: pods have no sshd and no names there.
AGENTS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")


def read(world: SchedulerContext) -> Allocation:
    """Return the workers, their names whole. Raises InputError on a hostfile that is not there, or is broken."""
    environ = world.environ
    variable = next(name for name in HOSTFILES if environ.get(name))
    path = environ[variable]
    job = (environ.get("K_MPI_JOB_ROLE", "") and environ.get("HOSTNAME", "").partition("-launcher")[0]) or path
    found = parse_hostfile(world.file(variable), f"hostfile {path}")
    agent = next((environ[name] for name in AGENTS if environ.get(name)), "")
    launcher = "agent" if agent.partition(" ")[0].endswith("kubexec.sh") else "ssh"
    hosts = HostList(found.hosts, f"Kubernetes ({path})")
    return Allocation("kubernetes", job, hosts, launcher=launcher)
