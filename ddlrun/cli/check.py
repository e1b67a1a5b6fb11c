"""ddlrun check: check all hosts before a job starts."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from ddlrun.cli.options import (
    Sections,
    check_build_option,
    hostfile_option,
    hosts_argument,
    mpirun_option,
    network_options,
    option,
    process_manager_option,
    scheduler_options,
    ssh_options,
    start_timeout_option,
)
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.application.inputs import reach, read_job_hosts
from ddlrun.application.read_container import container_options, read_container
from ddlrun.network.subnet_selection import parse_cidr
from ddlrun.plan.settings import Settings
from ddlrun.preflight.findings import FindingCode, Level, render_lines
from ddlrun.preflight.identity import CHECK as IDENTITY
from ddlrun.preflight.identity import check_identity
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightReport, PreflightRequest, preflight
from ddlrun.preflight.table import render_report, report_json
from ddlrun.process_managers.agents import is_own
from ddlrun.process_managers.choice import ManagerRequest, PendingManager
from ddlrun.process_managers.openmpi import Mpirun
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import check_distinct
from ddlrun.wording import did_you_mean


@click.command("check", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@hosts_argument
@hostfile_option
@ssh_options
@scheduler_options
@start_timeout_option
@network_options
@option("Checks", "--only-checks", metavar="NAME,...",
        help=f"Run only these checks, of {', '.join(NAMES)}.")  # fmt: skip
@check_build_option
@option("Checks", "--script", metavar="FILE", help="Also check that this script is the same on all hosts.")
@option("Checks", "--ship", metavar="code,env,PATH,...",
        help="Also check that these files can be copied to all hosts, as by launch --ship.")  # fmt: skip
@option("Checks", "--ship-dir", metavar="DIR", show_default="/tmp/ddlrun-ship-UID",  # noqa: S108 - see default_folder
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
    check_distinct(host_list, os.uname().nodename)
    choice = ManagerRequest(options["process_manager"], options["mpirun"], (sys.executable,))
    manager = PendingManager(choice, os.environ).result()
    request = PreflightRequest(
        mpirun=manager.path,
        major=manager.major,
        program=options["script"],
        network=options["network"],
        interfaces=tuple(filter(None, (options["network_interface"] or "").split(","))),
        only=_checks_of(manager, options),
        seconds=options["start_timeout"],
        path=os.environ.get("PATH"),
        container=read_container(options),
    )
    report = run_checks(host_list, launcher, request)
    text = report_json(report) if options["as_json"] else render_report(report, everything=options["everything"])
    click.echo(text, nl=False)
    if report.unreachable or not options["ship"]:
        return report.exit_code
    from ddlrun.cli.check_ship import check_ship  # noqa: PLC0415 - for this option alone

    return check_ship(host_list, launcher, options, report.here[1]) or report.exit_code


def run_checks(
    hosts: HostList,
    launcher: AgentLauncher,
    request: PreflightRequest,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> PreflightReport:
    """Run the requested checks on hosts that a launcher reaches, where ranks get the user's `variables`.

    Raises InputError where the network is malformed.
    """
    if request.network is not None:
        parse_cidr(request.network)
    only = request.only if launcher.needs_names else request.only - {"names"}
    request = request._replace(only=only, ssh=launcher.shown)
    return preflight(hosts, request, lambda seconds_left: reach(launcher, seconds_left, variables=variables))


def _checks_of(manager: Mpirun, options: Mapping[str, Any]) -> frozenset[str]:
    """Return the checks to run for a job of Python's, perhaps in a container."""
    container = frozenset() if options["container"] else frozenset({"container"})
    return parse_checks(options["only_checks"]) - _needless_checks(manager, (sys.executable,)) - container


def _needless_checks(manager: Mpirun, program: Sequence[str]) -> frozenset[str]:
    """Return the checks of what a job does not need: an mpirun on each host, or ddlrun's agent or its Python there."""
    needless = frozenset() if manager.manager.on_hosts else frozenset({"mpi"})
    if not is_own(manager):
        return needless | {"agent"}
    return needless if program[0] == sys.executable else needless | {"python"}


def _shipped_checks(settings: Settings) -> frozenset[str]:
    """Return the checks of files that travel to the hosts with --ship."""
    ship = settings.ship
    if ship is None:
        return frozenset()
    checks = {"files": ship.has_code, "python": ship.contains(sys.executable)}
    return frozenset(name for name, travels in checks.items() if travels)


def check_first(settings: Settings, mpirun: Mpirun) -> PreflightReport:
    """Probe a job's hosts and check them, with warnings on standard error."""
    check = settings.check
    only = frozenset(NAMES) if check.checks is None else check.checks
    only -= _needless_checks(mpirun, settings.job.program) | _shipped_checks(settings)
    container = settings.container
    if container is None:
        only -= {"container"}
    request = PreflightRequest(
        mpirun=mpirun.path,
        major=mpirun.major,
        program=_checked_program(settings),
        logs=settings.run.run_dir.path,
        network=check.network,
        interfaces=check.interfaces,
        only=only,
        seconds=check.seconds,
        path=settings.environment.variables.get("PATH", os.environ.get("PATH")),
        encryption=settings.supervision.encryption,
        container=container,
    )
    report = run_checks(settings.hosts.hosts, settings.hosts.launcher, request, settings.environment.variables)
    if not settings.run.quiet:
        warnings = [finding for finding in report.findings if finding.level is Level.WARNING and finding.check in only]
        if IDENTITY not in only:
            warnings += check_identity(report.facts, FindingCode.SAME_HOST_USED)
        for line in render_lines(warnings):
            click.echo(f"ddlrun: warning: {line}", err=True)
    return report


def _checked_program(settings: Settings) -> str | None:
    """Return the script or program that hosts must have; None where it travels to them."""
    program = _program_file(settings.job.program, in_image=settings.container is not None)
    ship = settings.ship
    travels = ship is not None and program is not None and "/" in program and ship.contains(os.path.abspath(program))
    return None if travels else program


def _program_file(words: Sequence[str], *, in_image: bool) -> str | None:
    """Return the script or program of a command line; None for a module of Python, and for a file in an image."""
    program = words[1] if words[0] == sys.executable and len(words) > 1 else words[0]
    if in_image:
        program = next((word for word in words[:2] if os.path.isfile(word)), "-m")
    return None if program == "-m" else program


def parse_checks(text: str | None) -> frozenset[str]:
    """Return the checks of a comma-separated list, all where it is None. Raises InputError for an unknown check."""
    names = list(NAMES) if text is None else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        hint = did_you_mean(unknown[0], NAMES)
        raise InputError(f"--only-checks: unknown check {unknown[0]!r}{hint}; the checks are {', '.join(NAMES)}")
    return frozenset(names)
