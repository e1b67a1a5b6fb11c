"""ddlrun check: look at all hosts before a job starts."""

import os
from typing import Any

import click

from ddlrun.cli.inputs import DEFAULT_PROBE_SECONDS, reach, read_hosts, ssh_arguments
from ddlrun.cli.options import Sections, network_options, option, ssh_options
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.launch import find_mpirun
from ddlrun.mpirun import Mpirun
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import Question, Report, preflight
from ddlrun.preflight.table import render_report, report_json
from ddlrun.probe import check_distinct


@click.command("check", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", required=False)
@option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line.")
@ssh_options
@option(
    "Hosts",
    "--start-timeout",
    type=click.FloatRange(min=1),
    default=DEFAULT_PROBE_SECONDS,
    show_default=True,
    help="Seconds until hosts that have not answered are given up.",
)
@network_options
@option("Checks", "--only", "only_checks", metavar="NAMES", help=f"Check these alone: {', '.join(NAMES)}.")
@option("Checks", "--script", metavar="PATH", help="Compare this script between the hosts too.")
@option("Checks", "--mpirun", metavar="PATH", help="The mpirun of the job; default: as launch finds it.")
@option("Answers", "--all", "everything", is_flag=True, help="Show what is well, too.")
@option("Answers", "--json", "as_json", is_flag=True, help="Print JSON: every finding, and the network.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Check that a job can run on HOSTS, in two ssh round trips; nothing is written there.

    Each line says what is wrong, on which hosts, and what mends it. The exit code is 3 where a host
    cannot be reached, 5 where anything else is wrong. HOSTS is a list such as n[01-64] or @HOSTFILE.
    """
    listed = read_hosts(hosts, options["hostfile"])
    check_distinct(listed, os.uname().nodename)
    mpirun = find_mpirun(options["mpirun"], os.environ)()
    ssh = ssh_arguments(options["ssh_port"], options["ssh_identity_file"])
    report = run_checks(listed, mpirun, ssh, options, program=options["script"])
    click.echo(
        report_json(report) if options["as_json"] else render_report(report, everything=options["everything"]), nl=False
    )
    return report.exit_code


def run_checks(
    hosts: HostList,
    mpirun: Mpirun,
    ssh: tuple[str, ...],
    options: dict[str, Any],
    *,
    program: str | None,
    logs: str = "",
) -> Report:
    """Run the checks that the options ask for. Raises InputError on a check that there is not."""
    seconds = options["start_timeout"]
    question = Question(
        mpirun.path,
        mpirun.major,
        program,
        logs or None,
        options["network"],
        tuple(filter(None, (options["network_interface"] or "").split(","))),
        read_only(options["only_checks"]),
        ("ssh", *ssh),
        seconds,
    )
    return preflight(hosts, question, reach(ssh, seconds))


def read_only(text: str | None) -> frozenset[str]:
    """Return the checks of a comma list; None: all. Raises InputError where one is not known."""
    words = list(NAMES) if text is None else [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word not in NAMES]
    if wrong:
        raise InputError(f"no check is called {wrong[0]!r}; there are {', '.join(NAMES)}")
    return frozenset(words)
