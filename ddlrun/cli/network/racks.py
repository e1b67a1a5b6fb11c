"""ddlrun network racks: find the racks of hosts by measuring."""

from typing import TYPE_CHECKING, Any

import click

from ddlrun.application.inputs import read_job_hosts
from ddlrun.application.measurement_job import LEAST_HOSTS, measure
from ddlrun.application.output_files import check_writable, write_atomically
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.launching import measuring_options
from ddlrun.cli.options.shared import hosts_argument
from ddlrun.cli.result import print_result
from ddlrun.environment.open_mpi import MCA
from ddlrun.errors import InputError
from ddlrun.hosts import Host, render_hostfile
from ddlrun.remote.probe import check_distinct
from ddlrun.report.racks import MeasuredHierarchy, hierarchy_dict, render_hierarchy

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import RacksResult

# Ranks yield their cores while they wait, so that other work can share them.
YIELD = ("--env", f"{MCA}mpi_yield_when_idle=1")


@click.command("racks", cls=Sections)
@hosts_argument
@measuring_options
@option("Output", "-o", "--output", metavar="FILE", help="Write the hosts to FILE, rack by rack, with rack=NAME.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the levels, rates and uncertain pairs as JSON.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Find the racks of HOSTS by measurement.

    All hosts send at the same time, in changing pairs. Pairs inside a rack keep their rate; pairs across racks slow
    each other down. If the racks are not certain, the exit code is 1 and no file is written.

    HOSTS is a list such as n[01-16], or @HOSTFILE; default: the hosts of the current scheduler job.
    """
    listed, _ = read_job_hosts(hosts, options)
    check_distinct(listed)
    if len(listed) < LEAST_HOSTS:
        raise InputError(f"{listed.source}: {len(listed)} of at least {LEAST_HOSTS} hosts; fewer cannot load an uplink")
    if options["output"]:
        check_writable(options["output"], "--output")
    words = ["--ranks-per-host", "1", "--rank-order", "host", *YIELD]
    result: RacksResult = measure(listed.take(map(Host, listed.names)), options, words, ["racks"], ConsoleReporter())
    hierarchy = MeasuredHierarchy(listed, result)
    print_result(hierarchy_dict(hierarchy), render_hierarchy(hierarchy), as_json=options["as_json"])
    if options["output"] and hierarchy.certain:
        write_atomically(options["output"], [render_hostfile(hierarchy.ordered())], "--output")
    return 0 if hierarchy.certain else 1
