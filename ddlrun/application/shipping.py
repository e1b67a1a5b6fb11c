"""The files of --ship on hosts: the stage of a launch that puts them there, their check, and their removal."""

import os
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ddlrun.application.attempt import Attempt
from ddlrun.application.inputs import reach
from ddlrun.application.options.ship import read_folder, read_ship, use_locked_environment
from ddlrun.application.reporter import Reporter
from ddlrun.errors import DdlrunError, InputError, UnreachableError
from ddlrun.hosts import HostList, fold
from ddlrun.listening import own_addresses
from ddlrun.mapping.placement import Placement
from ddlrun.plan.plan import Plan
from ddlrun.remote.links import HostLinks
from ddlrun.remote.probe import ProbeTarget, is_local, render_failures
from ddlrun.runs.store import state_folder
from ddlrun.ship.archive import Archive, find_archive, fingerprint_of_packages, make_archive, note_archive
from ddlrun.ship.environment import check_prefixes, find_interpreter, read_environment
from ddlrun.ship.files import Entry, list_code, list_tree, read_entries
from ddlrun.ship.host.unpack import FILE, FOLDER
from ddlrun.ship.request import ShipRequest, ShipSource, SourceKind, is_inside
from ddlrun.ship.server import run_ship_tasks
from ddlrun.ship.transfer import TransferPlan, TransferResult, transfer
from ddlrun.topology import Topology
from ddlrun.units import parse_bytes, render_memory
from ddlrun.wording import counted

LEAST_SECONDS = 60.0
NEVER_DAYS = 1e6


def ship(request: ShipRequest, attempt: Attempt, plan: Plan) -> None:
    """Put the files of --ship on the hosts of a plan. Raises InputError, PreflightError or UnreachableError."""
    settings = attempt.settings
    if not (settings.hosts.launcher.passes_stdin or settings.hosts.all_local):
        raise InputError(
            f"`--ship`: {settings.hosts.launcher.reason} does not pass standard input on; use another `--launcher`"
        )
    begin = time.monotonic()
    within = partial(reach, attempt.links)
    hosts = plan.placement.hosts.names
    transfer_plan = replace(
        plan_transfer(request, hosts, plan.local_hosts, plan.own_address, settings.check.seconds),
        run_id=settings.run.run_id,
        racks=_racks(plan.placement),
        first=next(filter(is_local, hosts), None),
    )
    result = transfer(transfer_plan, within)
    if result.unread:
        transfer_plan = replace(transfer_plan, archives=make_archives(request, whole=True))
        result = transfer(transfer_plan, within)
    if not settings.run.quiet:
        _report(result, time.monotonic() - begin, attempt.reporter)


def plan_transfer(
    request: ShipRequest, hosts: Sequence[str], local: Container[str], own_address: str | None, seconds: float
) -> TransferPlan:
    """Return the plan of a transfer to hosts, which must answer within some seconds, at the least LEAST_SECONDS."""
    environment = request.environment
    return TransferPlan(
        request=request,
        archives=make_archives(request),
        hosts=hosts,
        addresses=own_addresses([name for name in hosts if name not in local], own_address),
        seconds=max(seconds, LEAST_SECONDS),
        interpreter=None if environment is None else find_interpreter(environment),
    )


def make_archives(request: ShipRequest, *, whole: bool = False) -> list[Archive]:
    """Return the archive of each source. Raises InputError where a file cannot be read, or cannot work on the hosts.

    Without `whole`, the files of an environment of a lock file are looked at only if the environment has changed.
    """
    archives = [_make_archive(source, request, whole=whole) for source in request.sources]
    for archive in archives:
        check_prefixes(archive.entries or (), request.folder, archive.digest)
    return archives


def _make_archive(source: ShipSource, request: ShipRequest, *, whole: bool) -> Archive:
    state = state_folder(os.environ)
    if not (request.locked and source.kind is SourceKind.ENVIRONMENT):
        return make_archive(source, read_source(source, request.sources), state)
    fingerprint = fingerprint_of_packages(source.path)
    known = None if whole else find_archive(source, fingerprint, state)
    if known is not None:
        return known
    archive = make_archive(source, read_source(source, request.sources), state)
    note_archive(archive, fingerprint, state)
    return archive


def read_source(source: ShipSource, sources: Iterable[ShipSource]) -> list[Entry]:
    """Return the entries of one of the sources, without those of others. Raises InputError for an unreadable file."""
    if source.kind is SourceKind.ENVIRONMENT:
        return read_environment(source.path)
    paths = list_tree(source.path) if source.whole else list_code(source.path)
    inner = [other.path for other in sources if other is not source and is_inside(other.path, source.path)]
    paths = [path for path in paths if not any(is_inside(path, folder) for folder in inner)]
    # A run has links to whole folders, but folders of its own for those of code.
    return read_entries(paths, source.path, keep_times=False, read_only=FILE + FOLDER if source.whole else FILE)


def _racks(placement: Placement) -> dict[str, int | str]:
    """Return the rack of each host; without any, those of the topology."""
    hosts, topology = placement.hosts, placement.topology
    per_rack = topology.dims[1] if isinstance(topology, Topology) and len(topology.dims) > 2 else len(hosts)
    return {host.name: host.rack or index // per_rack for index, host in enumerate(hosts)}


def _report(result: TransferResult, seconds: float, reporter: Reporter) -> None:
    """Show which files have travelled."""
    moved = [chain for chain in result.chains if chain.hosts]
    for chain in moved:
        size = render_memory(chain.archive.size)
        reporter.line(f"shipped {chain.archive.source.path} ({size}) to {fold(chain.hosts)}")
    if moved:
        reporter.line(f"shipped in {seconds:.1f} s")


@dataclass(frozen=True, slots=True)
class ShipCheck:
    """What launch --ship would copy to each host, or the problems; one line each."""

    lines: tuple[str, ...] = ()
    exit_code: int = 0


def check_ship(
    hosts: HostList, links: HostLinks, options: Mapping[str, Any], own_address: str | None, reporter: Reporter
) -> ShipCheck:
    """Check that hosts can take the files. Raises InputError where there are no such files."""
    program: tuple[str, ...] = (sys.executable, *filter(None, (options["script"],)))
    options, program = use_locked_environment(options, program, reporter)
    request = read_ship(options, program)
    if request is None:
        return ShipCheck()
    local = {name for name in hosts.names if is_local(name)}
    plan = plan_transfer(request, hosts.names, local, own_address, options["start_timeout"])
    try:
        result = transfer(replace(plan, only_check=True), partial(reach, links))
    except DdlrunError as error:
        return ShipCheck(tuple(str(error).splitlines()), error.exit_code)
    return ShipCheck(tuple(_render(hosts, result)))


def _render(hosts: HostList, result: TransferResult) -> Iterator[str]:
    """Yield a line for each host."""
    for name in hosts.names:
        lacking = [chain.archive for chain in result.chains if name in chain.hosts]
        size = render_memory(sum(archive.size for archive in lacking))
        copied = f"{len(lacking)} of {len(result.chains)}, {size}" if lacking else "nothing"
        yield f"{name}: --ship would copy {copied}; {render_memory(result.states[name].free)} free"


def remove_shipped(
    hosts: Sequence[str], options: Mapping[str, Any], target: ProbeTarget, reporter: Reporter
) -> Iterator[str]:
    """Remove files that no run has used, by the options of `ddlrun clean`; yield a line for each host with how many.

    Raises InputError, and UnreachableError with the hosts that failed.
    """
    days, size = options["shipped_days"], options["shipped_size"]
    most_bytes = None if size is None else parse_bytes(size, "--shipped-size")
    task = {
        "action": "clean",
        "folder": read_folder(options["ship_dir"]),
        "days": NEVER_DAYS if days is None else days,
        "most_bytes": most_bytes,
    }
    reports = run_ship_tasks(dict.fromkeys(hosts, task), target)
    failures = {host: str(report["error"]) for host, report in reports.items() if "error" in report}
    for host, report in reports.items():
        if host not in failures:
            left = f", {render_memory(report['left'])} left" if most_bytes is not None else ""
            yield f"{host}: removed {counted(report['removed'], 'shipped folder')}{left}"
            for path in report["stuck"]:
                reporter.text(f"{host}: {path} has files of another user, who can remove them\n")
    if failures:
        raise UnreachableError(*render_failures(failures, target.ssh))
