"""ddlrun check: look at all hosts before a job starts."""

import os
import sys
from typing import Any

import click

from ddlrun.cli.inputs import reach, read_job_hosts
from ddlrun.cli.options import Sections, build_option, job_from, network_options, option, ssh_options, start_timeout
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.network.subnet_selection import parse_cidr
from ddlrun.plan.settings import Settings
from ddlrun.preflight.judge import NAMES, WARNING
from ddlrun.preflight.run import PreflightReport, PreflightRequest, lines, preflight
from ddlrun.preflight.table import render_report, report_json
from ddlrun.process_managers.installation import find_mpirun
from ddlrun.process_managers.openmpi import Mpirun
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import check_distinct


@click.command("check", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", required=False)
@option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line.")
@ssh_options
@job_from
@start_timeout
@network_options
@option("Checks", "--only", "only_checks", metavar="NAMES", help=f"Check these alone: {', '.join(NAMES)}.")
@build_option
@option("Checks", "--script", metavar="PATH", help="Compare this script between the hosts too.")
@option("Checks", "--mpirun", metavar="PATH", help="The mpirun of the job; default: as launch finds it.")
@option("Answers", "--all", "everything", is_flag=True, help="Show what is well, too.")
@option("Answers", "--json", "as_json", is_flag=True, help="Print JSON: every finding, and the network.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Check that a job can run on HOSTS, in two round trips; nothing is written there.

    Each line says what is wrong, on which hosts, and what mends it. The exit code is 3 where a host
    cannot be reached, 5 where anything else is wrong. HOSTS is a list such as n[01-64] or @HOSTFILE;
    without it, the hosts of the scheduler's job that we run in, or this machine.
    """
    listed, way = read_job_hosts(hosts, options)
    check_distinct(listed, os.uname().nodename)
    mpirun = find_mpirun(options["mpirun"], os.environ)()
    only = read_only(options["only_checks"])
    path = os.environ.get("PATH")
    report = run_checks(listed, mpirun, way, options, program=options["script"], path=path, only=only)
    text = report_json(report) if options["as_json"] else render_report(report, everything=options["everything"])
    click.echo(text, nl=False)
    return report.exit_code


def run_checks(
    hosts: HostList,
    mpirun: Mpirun,
    way: AgentLauncher,
    options: dict[str, Any],
    *,
    program: str | None,
    path: str | None,
    only: frozenset[str],
    logs: str | None = None,
) -> PreflightReport:
    """Run the checks that the options ask for. Raises InputError where --network is no subnet."""
    if options["network"] is not None:
        parse_cidr(options["network"])
    seconds = options["start_timeout"]
    if way.launcher == "agent":  # it knows its hosts by other means
        only -= {"names"}
    names = tuple(filter(None, (options["network_interface"] or "").split(",")))
    network = options["network"]
    question = PreflightRequest(
        mpirun.path, mpirun.major, program, logs, network, names, only, way.shown, seconds, path
    )
    return preflight(hosts, question, lambda left: reach(way, left))


def check_first(settings: Settings, mpirun: Mpirun, options: dict[str, Any]) -> PreflightReport:
    """Ask a job's hosts, and check them unless it is a dry run or --skip-checks is given; say what is odd."""
    only = read_only(options["only_checks"])
    if options["dry_run"] or options["skip_checks"]:
        only = frozenset()
    words = settings.program
    program = words[1] if words[0] == sys.executable and len(words) > 1 else words[0]
    report = run_checks(
        settings.hosts, mpirun, settings.way, options,
        program=None if program == "-m" else program, path=settings.variables.get("PATH", os.environ.get("PATH")),
        only=only, logs=settings.run_dir.path,
    )  # fmt: skip
    if not options["quiet"]:
        for line in lines(one for one in report.findings if one.level == WARNING and one.check in only):
            click.echo(f"ddlrun: warning: {line}", err=True)
    return report


def read_only(text: str | None) -> frozenset[str]:
    """Return the checks of a comma list; None: all. Raises InputError where one is not known."""
    words = list(NAMES) if text is None else [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word not in NAMES]
    if wrong:
        raise InputError(f"no check is called {wrong[0]!r}; there are {', '.join(NAMES)}")
    return frozenset(words)
