"""The check of `ddlrun check --ship`: whether hosts can take the files, and which of them they lack."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddlrun.application.locked_environment import use_locked_environment
from ddlrun.application.read_ship import read_ship
from ddlrun.application.reporter import Reporter
from ddlrun.application.shipping import make_archives, reach_privately, shipped_run
from ddlrun.errors import DdlrunError
from ddlrun.hosts import HostList
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import is_local
from ddlrun.ship.archive import Archive
from ddlrun.ship.server import TransferPlan
from ddlrun.ship.transfer import TransferResult, transfer
from ddlrun.supervise.launch import own_addresses
from ddlrun.units import render_memory


@dataclass(frozen=True, slots=True)
class ShipCheck:
    """What launch --ship would copy to each host, or the problems; one line each."""

    lines: tuple[str, ...] = ()
    exit_code: int = 0


def check_ship(
    hosts: HostList, launcher: AgentLauncher, options: Mapping[str, Any], own_address: str | None, reporter: Reporter
) -> ShipCheck:
    """Check that hosts can take the files. Raises InputError where there are no such files."""
    program: tuple[str, ...] = (sys.executable, *filter(None, (options["script"],)))
    options, program = use_locked_environment(options, program, reporter)
    request = read_ship(options, program)
    if request is None:
        return ShipCheck()
    archives = make_archives(request)
    own_name = os.uname().nodename
    others = [name for name in hosts.names if not is_local(name, own_name)]
    plan = TransferPlan(
        archives=archives, hosts=hosts.names, racks={}, first=None, addresses=own_addresses(others, own_address),
        only_check=True,
    )  # fmt: skip
    run = shipped_run(request, "", program[0], options["start_timeout"])
    try:
        with reach_privately(launcher, 0) as target:
            result = transfer(plan, run, target)
    except DdlrunError as error:
        return ShipCheck(tuple(str(error).splitlines()), error.exit_code)
    return ShipCheck(tuple(_render(hosts, archives, result)))


def _render(hosts: HostList, archives: list[Archive], result: TransferResult) -> Iterator[str]:
    """Yield a line for each host."""
    for name in hosts.names:
        lacking = [archive for archive in archives if name in result.hosts[archive.digest]]
        size = render_memory(sum(archive.size for archive in lacking))
        copied = f"{len(lacking)} of {len(archives)}, {size}" if lacking else "nothing"
        yield f"{name}: --ship would copy {copied}; {render_memory(result.free[name])} free"
