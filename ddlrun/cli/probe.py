"""ddlrun probe: show the machines of hosts."""

from typing import Any

import click

from ddlrun.application.probing import described_machines, probe_hosts
from ddlrun.cli.canvas import terminal_canvas
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.shared import (
    hostfile_option,
    hosts_argument,
    machine_option,
    probe_timeout_option,
    scheduler_options,
    ssh_options,
)
from ddlrun.cli.result import print_result
from ddlrun.errors import UnreachableError
from ddlrun.plan.plan import machine_group_dict
from ddlrun.remote.probe import group
from ddlrun.report.machines import render_groups


@click.command("probe", cls=Sections)
@hosts_argument
@hostfile_option
@ssh_options
@scheduler_options
@probe_timeout_option
@option("Hosts", "--refresh", is_flag=True, help="Ignore cached results.")
@machine_option("probe")
@option("Output", "--save", metavar="DIR", help="Write the output of each tool to DIR/HOST/.")
@option("Output", "--json", "as_json", is_flag=True, help="Print every core, GPU and NIC as JSON.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Show the hardware of HOSTS.

    Every host is contacted once, and nothing is written there. Hosts with equal hardware are shown together, and hosts
    that differ with the differences. Results are cached for an hour; a host that has rebooted or changed since is
    probed again.

    With --machine, no host is contacted: the hardware is that of a preset, a file, or an earlier --save.

    HOSTS is a list such as n[01-64], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    problems: list[str] = []
    if options["machine"]:
        machines = described_machines(hosts, options)
    else:
        machines, problems = probe_hosts(hosts, options)
    if machines:
        groups = group(machines)
        record = {
            "machines": [machine_group_dict(names, machine) for machine, names in groups],
            "problems": problems,
        }
        print_result(record, render_groups(groups, terminal_canvas()), as_json=options["as_json"])
    if problems:
        raise UnreachableError(*problems)
    return 0
