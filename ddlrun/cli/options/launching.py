"""Options that commands share which launch a job, or check what one needs."""

from collections.abc import Callable
from typing import Any

import click

from ddlrun.cli.options import option, option_group
from ddlrun.cli.options.shared import (
    TOPOLOGY_HELP,
    UNREACHABLE_HELP,
    hostfile_option,
    racks_option,
    scheduler_options,
    ssh_options,
)
from ddlrun.cli.options.types import Choice, RanksPerHostType, Time
from ddlrun.managers import AUTO, MANAGERS
from ddlrun.network.addresses import parse_cidr, split_network
from ddlrun.plan.container import AUTO as AUTO_RUNTIME
from ddlrun.plan.container import RUNTIMES


def _check_network(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return a network. Raises InputError where a subnet is malformed, also on one host, where it has no effect."""
    subnet, _ = split_network(value)
    if subnet is not None:
        parse_cidr(subnet)
    return value


network_option = option(
    "Network", "--network", metavar="CIDR|NAME,...", callback=_check_network,
    show_default="the fastest one that all hosts share",
    help="Network for the traffic between hosts: a subnet such as 10.0.0.0/16, or interfaces such as ib0,eth1, of "
    "which each host uses those that it has.",
)  # fmt: skip
tcp_option = option("Network", "--tcp", is_flag=True, help="Use TCP between hosts, never RDMA.")
encrypt_option = option(
    "Network", "--encrypt", is_flag=True,
    help="Encrypt the output of the ranks, and all supervision, on its way to ddlrun; MPI's traffic is not encrypted.",
)  # fmt: skip


def _show_builds(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        from ddlrun.application.check import describe_builds  # noqa: PLC0415 - 30 ms, for this option alone

        click.echo(describe_builds(), nl=False)
        ctx.exit()


def check_build_option(*, hidden: bool = False) -> Callable[[Any], Any]:
    """Declare --check-build; hidden where it is another program's."""
    return option(
        "Checks", "-cb", "--check-build", is_flag=True, is_eager=True, expose_value=False, callback=_show_builds,
        help="Show how the frameworks of this Python were built, and start nothing.", hidden=hidden,
    )  # fmt: skip


checks_option = option(
    "Checks", "--checks", metavar="NAME,...", show_default="all",
    help="Check the hosts only for these problems, such as mpi,tcp (see ddlrun check); none: not at all.",
)  # fmt: skip
start_timeout_option = option(
    "Hosts", "--start-timeout", type=Time(1), default=30, show_default=True, metavar="TIME", help=UNREACHABLE_HELP
)
check_options = option_group(
    network_option,
    tcp_option,
    encrypt_option,
    start_timeout_option,
    checks_option,
)
mpirun_option = option(
    "MPI", "--mpirun", metavar="FILE", show_default="the one beside this Python, otherwise the first on PATH",
    help="Use this mpirun.",
)  # fmt: skip
process_manager_option = option(
    "MPI", "--process-manager", type=Choice(MANAGERS), default=AUTO, show_default=True,
    help="Program that starts the ranks. auto: Open MPI's mpirun where it is installed and the program may use it, "
    "otherwise ddlrun itself. srun: Slurm's, inside a job of it.",
)  # fmt: skip
allow_root_option = option(
    "MPI", "--allow-run-as-root", is_flag=True, help="Allow root to start mpirun, as is usual in containers."
)
SHIP_FOLDER = "/tmp/ddlrun-ship-UID"  # noqa: S108 - see read_folder
GRACE_HELP = "Time that ranks have to exit between SIGTERM and SIGKILL."
# Other names of runtimes, and the tools around them.
RUNTIME_SYNONYMS = {
    "singularity": "apptainer", "ch-run": "charliecloud", "bubblewrap": "bwrap", "pyxis": "enroot",
    "nvidia-docker": "docker",
}  # fmt: skip
container_options = option_group(
    option(
        "Container",
        "--container",
        metavar="IMAGE",
        help="Run the ranks in a container: the name of an image, a root folder, a .sif or .sqsh file.",
    ),
    option(
        "Container",
        "--container-runtime",
        type=Choice([AUTO_RUNTIME, *RUNTIMES], RUNTIME_SYNONYMS),
        default=AUTO_RUNTIME,
        show_default=True,
        help="Container runtime; auto: the first one on PATH that takes IMAGE.",
    ),
)
container_args_option = option(
    "Container", "--container-args", metavar="ARGS", help="Additional arguments of the runtime, such as mounts."
)
ranks_per_host_option = option(
    "Topology", "--ranks-per-host", type=RanksPerHostType(), metavar="N|gpu|package|numa|core|gpu-or-core",
    help="Ranks per host: X, or one per GPU, package, NUMA node or core of each host; gpu-or-core: per core only where "
    "a host has no GPUs.",
)  # fmt: skip
measuring_options = option_group(
    hostfile_option,
    ssh_options,
    scheduler_options,
    start_timeout_option,
    network_option,
    tcp_option,
    checks_option,
    mpirun_option,
    allow_root_option,
)
shape_options = option_group(
    option("Topology", "--topology", metavar="XxYxZ[xA]", show_default="as for launch", help=TOPOLOGY_HELP),
    ranks_per_host_option,
    racks_option,
)


def budget_option(default: str) -> Callable[[Any], Any]:
    """Declare --budget."""
    return option(
        "Measurement", "--budget", default=default, show_default=True, metavar="TIME",
        help="Total time, such as 90s or 5m.",
    )  # fmt: skip
