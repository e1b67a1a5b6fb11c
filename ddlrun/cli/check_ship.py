"""The check of `ddlrun check --ship`: whether hosts can take the files, and which of them they lack."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ddlrun.application.locked_environment import use_locked_environment
from ddlrun.application.read_ship import read_ship
from ddlrun.application.shipping import make_archives, reach_privately, shipped_run
from ddlrun.cli.console import ConsoleReporter
from ddlrun.errors import DdlrunError
from ddlrun.hosts import HostList
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import is_local
from ddlrun.ship.archive import Archive
from ddlrun.ship.server import TransferPlan
from ddlrun.ship.transfer import TransferResult, transfer
from ddlrun.supervise.launch import own_addresses
from ddlrun.units import render_memory


def check_ship(hosts: HostList, launcher: AgentLauncher, options: Mapping[str, Any], own_address: str | None) -> int:
    """Print what launch --ship would copy to each host, or the problems; return the exit code. Raises InputError."""
    program: tuple[str, ...] = (sys.executable, *filter(None, (options["script"],)))
    options, program = use_locked_environment(options, program, ConsoleReporter())
    request = read_ship(options, program)
    if request is None:
        return 0
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
        click.echo(str(error))
        return error.exit_code
    click.echo("".join(_render(hosts, archives, result)), nl=False)
    return 0


def _render(hosts: HostList, archives: list[Archive], result: TransferResult) -> Iterator[str]:
    """Yield a line for each host."""
    for name in hosts.names:
        lacking = [archive for archive in archives if name in result.hosts[archive.digest]]
        size = render_memory(sum(archive.size for archive in lacking))
        copied = f"{len(lacking)} of {len(archives)}, {size}" if lacking else "nothing"
        yield f"{name}: --ship would copy {copied}; {render_memory(result.free[name])} free\n"
