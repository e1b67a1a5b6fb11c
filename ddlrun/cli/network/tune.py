"""ddlrun network tune: find the settings that average gradients fastest, and save them as a profile for launch."""

from typing import Any

import click

from ddlrun.application.tuning import save_profile, tune
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.network.plan import gradient_options
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.launching import budget_option, measuring_options, shape_options
from ddlrun.cli.options.shared import hosts_argument
from ddlrun.cli.result import print_result
from ddlrun.report.tune import render_tune


@click.command("tune", cls=Sections)
@hosts_argument
@measuring_options
@shape_options
@gradient_options
@budget_option("3m")
@option("Measurement", "--links", metavar="FILE", show_default="measure the links",
        help="Read links that bench --save-links wrote.")  # fmt: skip
@option("Measurement", "--horovod/--no-horovod", "horovod", default=None, show_default="if it is installed",
        help="Also tune Horovod's fusion threshold and cycle time.")  # fmt: skip
@option("Measurement", "--exhaustive", is_flag=True, help="Measure every combination, without a time limit.")
@option(
    "Output", "--save", metavar="FILE",
    help="Write the profile to FILE, for --profile of ddlrun launch; -: do not save the profile.",
)  # fmt: skip
@option("Output", "--json", "as_json", is_flag=True, help="Print all measurements as JSON, in bytes and seconds.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Find the fastest settings for HOSTS.

    Finds the settings that average gradients fastest, and saves them as a profile. ddlrun launch then uses the profile
    on the same hosts and prints a note; --profile none turns it off.

    First measures the links. Then measures the topologies XxYxZ and the modes of ddlrun.ddl that ddlrun network plan
    predicts to be fastest, with several sizes of chunks and buckets, and then Horovod's settings. --compute needs
    --overlap: together they describe the backward pass, during which gradients are sent.

    HOSTS is a list such as n[01-16], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    tuning = tune(hosts, options, ConsoleReporter())
    print_result(tuning.record, render_tune(tuning.record), as_json=options["as_json"])
    save_profile(tuning.record, replace=options["save"] is not None)
    return tuning.exit_code
