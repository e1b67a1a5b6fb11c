"""The check of hosts: before a job starts, and for ddlrun check; and the builds of the frameworks here."""

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ddlrun import __version__
from ddlrun.application.inputs import reach
from ddlrun.application.reporter import Reporter
from ddlrun.environment.framework_builds import LIBRARIES, render_builds
from ddlrun.errors import DdlrunError, InputError
from ddlrun.hosts import HostList
from ddlrun.managers import ProcessManager
from ddlrun.managers.installation import probe_builds, start_version_query
from ddlrun.managers.program_mpi import mpi4py_variables
from ddlrun.network.addresses import parse_cidr
from ddlrun.plan.settings import Settings
from ddlrun.preflight.findings import FindingCode, Level, render_lines
from ddlrun.preflight.identity import CHECK as IDENTITY
from ddlrun.preflight.identity import check_identity
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightReport, PreflightRequest, preflight
from ddlrun.remote.links import HostLinks
from ddlrun.wording import did_you_mean

# The word of --checks for no checks.
NONE = "none"


def run_checks(
    hosts: HostList,
    links: HostLinks,
    request: PreflightRequest,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> PreflightReport:
    """Run the requested checks on hosts over links, where ranks get the user's `variables`.

    Raises InputError where the network is malformed.
    """
    if request.network is not None:
        parse_cidr(request.network)
    only = request.only if links.launcher.needs_names else request.only - {"names"}
    request = request._replace(only=only, ssh=links.launcher.shown)
    return preflight(hosts, request, lambda seconds_left: reach(links, seconds_left, variables=variables))


def checks_of(manager: ProcessManager, options: Mapping[str, Any]) -> frozenset[str]:
    """Return the checks to run for a job of Python's, perhaps in a container."""
    container = frozenset() if options["container"] else frozenset({"container"})
    if options["checks"] == NONE:
        raise InputError("`--checks` none: ddlrun check exists to check; leave the option out, or name checks")
    return parse_checks(options["checks"]) - _needless_checks(manager, (sys.executable,)) - container


def _needless_checks(manager: ProcessManager, program: Sequence[str]) -> frozenset[str]:
    """Return the checks of what a job does not need on hosts: the manager's program, or ddlrun's agent or Python."""
    needless = frozenset({"mpi", "agent"}) - manager.needs
    return needless if "agent" in needless or program[0] == sys.executable else needless | {"python"}


def _shipped_checks(settings: Settings) -> frozenset[str]:
    """Return the checks of files that travel to the hosts with --ship."""
    ship = settings.ship
    if ship is None:
        return frozenset()
    checks = {"files": ship.has_code, "python": ship.contains(sys.executable)}
    return frozenset(name for name, travels in checks.items() if travels)


def check_first(settings: Settings, manager: ProcessManager, links: HostLinks, reporter: Reporter) -> PreflightReport:
    """Probe a job's hosts and check them; show warnings."""
    check = settings.check
    only = frozenset(NAMES) if check.checks is None else check.checks
    only -= _needless_checks(manager, settings.job.program) | _shipped_checks(settings)
    container = settings.container
    if container is None:
        only -= {"container"}
    request = PreflightRequest(
        manager=manager,
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
    report = run_checks(settings.hosts.hosts, links, request, settings.environment.variables)
    if not settings.run.quiet:
        warnings = [finding for finding in report.findings if finding.level is Level.WARNING and finding.check in only]
        if IDENTITY not in only:
            warnings += check_identity(report.facts, FindingCode.SAME_HOST_USED)
        for line in render_lines(warnings):
            reporter.line(f"warning: {line}")
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
    if text == NONE:
        return frozenset()
    names = list(NAMES) if text is None else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        hint = did_you_mean(unknown[0], NAMES)
        raise InputError(f"`--checks`: unknown check {unknown[0]!r}{hint}; the checks are {', '.join(NAMES)}")
    return frozenset(names)


def describe_builds() -> str:
    """Return the versions and builds of Python, MPI and the frameworks: that needs neither a script nor hosts."""
    try:
        manager = start_version_query(None, os.environ).result()
        mpi, library = str(manager), mpi4py_variables(manager.find_library(), os.environ)
    except DdlrunError as error:
        mpi, library = str(error), {}
    heading = f"ddlrun {__version__}, Python {sys.version.split()[0]} ({sys.executable})\n{mpi}"
    return render_builds(probe_builds(sys.executable, list(LIBRARIES), library), heading)
