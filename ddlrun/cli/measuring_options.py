"""The options of commands that start a measuring job: racks, bench and tune."""

from collections.abc import Callable
from typing import Any

from ddlrun.cli.job_options import accelerators_option
from ddlrun.cli.options import (
    TOPOLOGY_HELP,
    allow_root_option,
    hostfile_option,
    mpirun_option,
    network_options,
    option,
    option_group,
    overload_option,
    racks_option,
    scheduler_options,
    skip_checks_option,
    ssh_options,
    start_timeout_option,
    tcp_option,
)

measuring_options = option_group(
    hostfile_option,
    ssh_options,
    scheduler_options,
    start_timeout_option,
    network_options,
    tcp_option,
    skip_checks_option,
    mpirun_option,
    allow_root_option,
)
shape_options = option_group(
    option("Topology", "--topology", metavar="XxYxZ[xA]", show_default="as for launch", help=TOPOLOGY_HELP),
    accelerators_option,
    racks_option,
    overload_option,
)


def budget_option(default: str) -> Callable[[Any], Any]:
    """Declare --budget."""
    return option(
        "Measurement", "--budget", default=default, show_default=True, metavar="TIME",
        help="Total time, such as 90s or 5m.",
    )  # fmt: skip
