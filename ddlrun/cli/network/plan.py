"""ddlrun network plan: predict every decomposition of a job on a network; no host need be reachable."""

from typing import Any

import click

from ddlrun.allreduce_algorithms import MODES
from ddlrun.application.forecasting import MODEL, forecast
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, option, option_group
from ddlrun.cli.options.shared import (
    TOPOLOGY_HELP,
    hostfile_option,
    hosts_argument,
    machine_option,
    scheduler_options,
    ssh_options,
)
from ddlrun.cli.options.types import COUNT, Choice, Number
from ddlrun.cli.result import print_result
from ddlrun.network.presets import BETWEEN, INSIDE, MODELS
from ddlrun.report.forecast import forecast_dict, render_forecast

gradient_options = option_group(
    option("Training step", "--gradient", metavar="SIZE", help="Size of a step's gradients, such as 100MB."),
    option(
        "Training step", "--model", type=Choice(list(MODELS)), show_default=MODEL, metavar="NAME",
        help=f"Use the gradients of a model, in float32: {', '.join(MODELS)}.",
    ),
    option("Training step", "--compute", metavar="TIME", help="Computing time of a step, such as 120ms."),
    option(
        "Training step", "--overlap", type=Number(0, 1), default=0, show_default=True, metavar="SHARE",
        help="Share of --compute during which gradients are sent: 0.6 if the backward pass "
        "takes 60 %, 0 if they are sent after it.",
    ),
)  # fmt: skip


@click.command("plan", cls=Sections)
@hosts_argument
@hostfile_option
@option("Hosts", "--host-count", "count", type=COUNT, metavar="N", help="Number of hosts of a planned cluster.")
@machine_option("probe")
@ssh_options
@scheduler_options
@option("Topology", "--topology", metavar="XxYxZ[xA]", help=TOPOLOGY_HELP)
@option(
    "Topology",
    "--ranks-per-host",
    type=COUNT,
    metavar="N",
    show_default="as for launch",
    help="X: ranks per host.",
)
@option(
    "Topology",
    "--racks",
    type=COUNT,
    metavar="N",
    show_default="those of the hosts or of the network",
    help="Z: racks.",
)
@option(
    "Network",
    "--links",
    "links",
    metavar="FILE|PRESETS",
    help="Links of the cluster: a YAML file, or presets for the links inside a host, of the NICs and of the uplinks, "
    f"such as 100gbe or nvlink3,8x200gbe,2:1. Presets: {', '.join((*INSIDE, *BETWEEN))}.",
)
@gradient_options
@option(
    "Training step",
    "--mode",
    type=Choice(MODES),
    default="p",
    show_default=True,
    help="Mode of the allreduce of ddlrun.ddl.",
)
@option(
    "Training step",
    "--images",
    type=COUNT,
    metavar="N",
    help="Number of images per epoch; adds the time lost if they do not divide evenly among the ranks.",
)
@option("Training step", "--batch", type=COUNT, metavar="N", show_default="1", help="Images per rank and step.")
@option("Output", "--json", "as_json", is_flag=True, help="Print all topologies as JSON.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own
    """Predict the step time of every topology.

    For every topology XxYxZ of a job, prints the time of an allreduce and of a step, the bytes over each level of the
    network, and the cost of a wrong rank order. The time of a step and the efficiency need --compute.

    HOSTS is a list such as n[01-06], or @HOSTFILE; default: the hosts of the current scheduler job, or this host. To
    plan a cluster that does not exist, describe it: --topology 4x8x2 --links nvlink3,8x200gbe,2:1, or
    --host-count 16 --ranks-per-host 4 --links 100gbe.
    """
    report = forecast(options, ConsoleReporter())
    print_result(forecast_dict(report), render_forecast(report), as_json=options["as_json"])
