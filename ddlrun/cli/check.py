"""ddlrun check: check all hosts before a job starts."""

import os
import shutil
import sys
from contextlib import closing
from typing import Any

import click

from ddlrun.application.check import checks_of, run_checks
from ddlrun.application.inputs import open_links, read_job_hosts
from ddlrun.application.options.container import read_container
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.launching import (
    SHIP_FOLDER,
    check_build_option,
    container_options,
    mpirun_option,
    network_option,
    process_manager_option,
    start_timeout_option,
)
from ddlrun.cli.options.shared import hostfile_option, hosts_argument, scheduler_options, ssh_options
from ddlrun.cli.result import print_result
from ddlrun.errors import InputError
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.network.addresses import split_network
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightRequest
from ddlrun.preflight.table import check_record, render_report
from ddlrun.remote.probe import check_distinct


@click.command("check", cls=Sections)
@hosts_argument
@hostfile_option
@ssh_options
@scheduler_options
@start_timeout_option
@network_option
@option("Checks", "--checks", metavar="NAME,...",
        help=f"Run only these checks, of {', '.join(NAMES)}.")  # fmt: skip
@check_build_option()
@option("Checks", "--script", metavar="FILE", help="Also check that this script is the same on all hosts.")
@option("Checks", "--ship", metavar="code,env,PATH,...",
        help="Also check that these files can be copied to all hosts, as by launch --ship.")  # fmt: skip
@option("Checks", "--ship-dir", metavar="DIR", show_default=SHIP_FOLDER,
        help="Folder for the files of --ship, on a local disk of each host.")  # fmt: skip
@container_options
@process_manager_option
@mpirun_option
@option("Output", "--all", "everything", is_flag=True, help="Also show checks that passed.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the findings and the network as JSON.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Check that a job can run on HOSTS.

    Each line shows a problem, its hosts and the remedy. Every host is contacted twice, and nothing is written there.
    The exit code is 3 if a host cannot be reached, and 5 if a check fails.

    HOSTS is a list such as n[01-64], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    if options["ship"] and options["as_json"]:
        raise InputError("--ship prints no JSON; leave out --ship or --json")
    if options["script"] and not os.path.isfile(options["script"]) and shutil.which(options["script"]) is None:
        raise InputError(f"--script {options['script']}: no such file here; name a script or program by its path")
    host_list, launcher = read_job_hosts(hosts, options)
    check_distinct(host_list)
    choice = ManagerRequest(options["process_manager"], options["mpirun"], (sys.executable,))
    manager = PendingManager(choice, os.environ).result()
    if manager.warning:
        click.echo(f"note: {manager.warning}", err=True)
    network, interfaces = split_network(options["network"])
    request = PreflightRequest(
        manager=manager,
        program=options["script"],
        network=network,
        interfaces=interfaces,
        only=checks_of(manager, options),
        seconds=options["start_timeout"],
        path=os.environ.get("PATH"),
        container=read_container(options),
    )
    with closing(open_links(launcher)) as links:
        report = run_checks(host_list, links, request)
        text = render_report(report, everything=options["everything"])
        print_result(check_record(report), text, as_json=options["as_json"])
        if report.unreachable or not options["ship"]:
            return report.exit_code
        from ddlrun.application.shipping import check_ship  # noqa: PLC0415 - 40 ms, for --ship alone

        shipping = check_ship(host_list, links, options, report.here[1], ConsoleReporter())
    click.echo("".join(f"{line}\n" for line in shipping.lines), nl=False)
    return shipping.exit_code or report.exit_code
