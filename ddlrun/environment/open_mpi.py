"""The names of Open MPI's variables that other folders read or set."""

# The beginnings of parameters: of ranks and of the launcher of Open MPI 4, and of that of Open MPI 5, PRRTE.
MCA, PRRTE = "OMPI_MCA_", "PRTE_MCA_"
# The beginning of what describes the job and the rank.
WORLD = "OMPI_COMM_WORLD_"
RANK_VARIABLES = (f"{WORLD}RANK", f"{WORLD}LOCAL_RANK", f"{WORLD}SIZE")
# With the value 1, root may start a job.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Open MPI 4.1 sets it to "singleton" in MPI_Init outside mpirun; an mpirun that inherits it ends with 1.
SINGLETON = f"{MCA}ess"
# The hostfile, the command that starts daemons, and ssh's arguments.
HOSTFILES = (f"{MCA}orte_default_hostfile", f"{PRRTE}prte_default_hostfile")
AGENTS = (f"{MCA}plm_rsh_agent", f"{PRRTE}plm_ssh_agent")
SSH_ARGUMENTS = (f"{MCA}plm_rsh_args", f"{PRRTE}plm_ssh_args")
# Where Open MPI and its parts are installed.
PREFIXES = ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX")
