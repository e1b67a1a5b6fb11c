"""The options of a job, as launch and show take them, and the config file as their default."""

import click

from ddlrun.cli.options import option, option_group
from ddlrun.cli.options.configuration import apply_configuration
from ddlrun.cli.options.launching import (
    GRACE_HELP,
    allow_root_option,
    mpirun_option,
    process_manager_option,
    ranks_per_host_option,
)
from ddlrun.cli.options.shared import (
    ORDER_HELP,
    TOPOLOGY_HELP,
    hostfile_option,
    machine_option,
    note_named_file,
    placement_options,
    scheduler_options,
    ssh_options,
)
from ddlrun.cli.options.types import COUNT, SECONDS, Choice, Number, WholeNumber
from ddlrun.environment.frameworks import FRAMEWORKS
from ddlrun.mapping.policy import MEMBINDS

MOST_SPAWN_SLOTS = 10_000


def load_config(ctx: click.Context, _param: click.Parameter, path: str | None) -> str | None:
    """Take defaults of options from config files and environment variables."""
    if not ctx.resilient_parsing:
        apply_configuration(ctx, path)
    return path


job_options = option_group(
    option(
        "Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", callback=note_named_file,
        help="Hosts, such as n1,n2, n[01-04]:2 with 2 slots per host, or a:4,b:2.",
    ),
    hostfile_option,
    machine_option("probe"),
    ssh_options,
    scheduler_options,
    option("Topology", "--topology", metavar="XxYxZ[xA]", help=TOPOLOGY_HELP),
    ranks_per_host_option,
    option("Topology", "--nodes", type=COUNT, metavar="N", help="Y: hosts per rack.", hidden=True),
    option("Topology", "--racks", type=COUNT, metavar="N", help="Z: racks.", hidden=True),
    option("Topology", "--aisles", type=COUNT, metavar="N", help="A: aisles.", hidden=True),
    option(
        "Topology", "-np", "-n", "--num-proc", "processes", type=COUNT, metavar="N",
        help="Total number of ranks, divided equally among the hosts. If that is impossible, each host in turn is "
        "filled to its slots.",
    ),
    option("Topology", "--nnodes", type=COUNT, hidden=True),  # torchrun's: must agree with the hosts

    option(
        "Topology", "--rank-order", type=Choice(["auto", "host", "ddl"]), default="auto", show_default=True,
        help=f"{ORDER_HELP}; auto: ddl with --mode, otherwise host. The default of gen-rankfile is ddl.",
    ),
    option(
        "Frameworks", "--framework", "frameworks", default="auto", show_default=True, metavar="NAME,...",
        help=f"Frameworks whose variables are set: {', '.join(FRAMEWORKS)}; auto: all of them.",
    ),
    option(
        "Frameworks", "--mode", type=Choice(list("bnrmcp")),
        help="Mode of the allreduce of ddlrun.ddl; sets DDL_OPTIONS and rank order ddl.",
    ),
    option(
        "Frameworks", "--profile", default="auto", show_default=True, metavar="auto|none|FILE",
        help="Use the settings that ddlrun network tune found to be fastest; auto: if it was run on these hosts.",
    ),
    process_manager_option,
    mpirun_option,
    option("MPI", "--mpi-args", metavar="ARGS",
        help="Additional arguments of mpirun, quoted as for a shell; they follow those of a config file or variable."),
    option(
        "MPI", "--spawn-slots", type=WholeNumber(0, MOST_SPAWN_SLOTS), default=0, show_default=True, metavar="N",
        help="Let the job start N more processes per host with MPI_Comm_spawn, as mpi4py.futures does.",
    ),
    allow_root_option,
    option(
        "Environment", "--env", "-x", "variables", multiple=True, metavar="NAME[=VALUE]",
        help="Set a variable for the ranks, or pass one on; may be repeated.",
    ),
    option(
        "Environment", "--export", default="ALL", show_default=True, metavar="ALL|NONE|NAME,...",
        help="Variables that are passed on to the ranks. ALL: all but those that describe this host, such as HOSTNAME. "
        "NONE: only PATH and the like. NAME: only these, such as SEED,NCCL_*.",
    ),
    option(
        "Environment", "--hook", default="all", metavar="NAME,...", hidden=True,
        help="Duties of the start-up hook of Python ranks: exit, backend, stacks, world; all, or none.",
    ),
    option("Placement", "--rankfile", metavar="FILE", help="Place ranks by this rank file, which is checked first."),
    placement_options,
    option("Placement", "--share-gpus", is_flag=True, help="Allow several ranks per GPU; GPUs are assigned in turn."),
    option(
        "Placement", "--visible-gpus", type=Choice(["all", "own", "unchanged"]),
        help="GPUs that a rank sees. all: every GPU, its own at the index of its local rank (default). own: only its "
        "own (default with --framework tensorflow and several ranks per host). unchanged: as in the "
        "environment.",
    ),
    option(
        "Placement", "--bind-threads/--no-bind-threads", default=None,
        help="Bind OpenMP threads to cores (OMP_PROC_BIND); processes that a rank forks then stay on one core.",
    ),
    option(
        "Placement", "--membind", type=Choice(MEMBINDS), show_default="as the kernel decides",
        help="Allocate a rank's memory only on these NUMA nodes. local: those of its cores. interleave: the same, in "
        "turn. gpu: that of its GPU.",
    ),
    option("Placement", "--strict-binding/--no-strict-binding", default=None,
           show_default="off; on with an Open MPI that is newer than ddlrun",
           help="Refuse more ranks than cores, and end the job if a rank's cores or GPU are not those of the plan."),
    option(
        "Run", "--config-file", metavar="FILE", is_eager=True, expose_value=False, callback=load_config,
        help="Also read options, env and Horovod's settings from this YAML file (see ddlrun config); none: read no "
        "config file.",
    ),
    option(
        "Output", "--output", metavar="tag|no-tag,timestamp,fold,dir=DIR", show_default="tag with several ranks",
        help="tag: begin every line with [rank@host]. timestamp: with the time. fold: print equal lines of several "
        "ranks once. dir: also write the output of each rank to DIR/rank.N/stdout and DIR/rank.N/stderr.",
    ),
    option(
        "Output", "--ranks", "shown_ranks", metavar="LIST",
        help="Print the output of these ranks only, such as 0,3-5; the log files have all output.",
    ),
    option("Output", "--local-ranks", "shown_local_ranks", metavar="LIST", hidden=True),  # torchrun's
    option("Output", "--sample-interval", type=SECONDS, metavar="TIME", default=1, show_default=True,
           help="Time between two samples of each rank's use of resources, for ddlrun top; 0: none."),
    option(
        "Debugging", "--debug-rank", type=WholeNumber(min=0), metavar="N",
        help="Run rank N under pdb or ipdb at this terminal, a program in another language under gdb. Ctrl-\\ ends the "
        "job.",
    ),
    option(
        "Debugging", "--wrap", multiple=True, metavar="RANKS:COMMAND",
        help="Put COMMAND before the program on ranks such as 0,3-5 or all; {run}, {rank}, {local_rank} and {host} are "
        "replaced. May be repeated.",
    ),
    option(
        "Debugging", "--pty", is_flag=True,
        help="Give rank 0, or that of --stdin-rank, this terminal, for interactive programs. Ctrl-\\ ends the job.",
    ),
    option("Debugging", "--stdin-rank", type=WholeNumber(min=0), metavar="N", show_default="0",
           help="Pass standard input on to rank N."),
    option("Termination", "--grace", type=SECONDS, metavar="TIME", default=10, show_default=True, help=GRACE_HELP),
    option(
        "Termination", "--timeout", type=SECONDS, metavar="TIME", default=0, show_default=True,
        help="End the job after this time, with exit code 124; 0: never.",
    ),
    option("Termination", "--heartbeat", type=SECONDS, metavar="TIME", default=30, show_default=True,
           help="Consider a host, or ddlrun, lost after this time of silence; 0: never."),
    option("Termination", "--stall-timeout", type=SECONDS, metavar="TIME", default=0, show_default=True,
           help="If a rank prints nothing for this time, examine the job as ddlrun doctor does, and end it with exit "
           "code 123 if it hangs; 0: never."),
    option("Termination", "--stall-action", type=Choice(["end", "report"]), default="end", show_default=True,
           help="What to do with a job that hangs after --stall-timeout: end it, or only report it."),
    option("Termination", "--stall-work-factor", type=Number(min=0), metavar="N", default=5, show_default=True,
           help="End a job that is busy, but prints nothing, after N times --stall-timeout; 0: never."),
    option("Termination", "--forward-signals", default="USR1,USR2", show_default=True, metavar="NAME,...",
           help="Signals that are passed on to the programs of the ranks."),
    option("Horovod", "--fusion-threshold-mb", type=Number(min=0), metavar="MB",
           help="Fuse tensors up to this size, in MB; 0: no fusion. Horovod's other options are accepted, too."),
    option("Horovod", "--hierarchical-allreduce/--no-hierarchical-allreduce", default=None,
           help="Allreduce inside each host first, then between hosts."),
    option("Run", "-m", "is_module", is_flag=True, help="SCRIPT is a Python module, as in python -m."),
)  # fmt: skip
