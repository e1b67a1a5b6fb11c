"""ddlrun gen-rankfile: write the Open MPI rank file of a topology and hosts."""

import re
from typing import Any

import click

from ddlrun.application.output_files import write_atomically
from ddlrun.application.rank_files import ASSUMED_PRESET, generate_rankfile
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.shared import (
    ORDER_HELP,
    hostfile_option,
    hosts_argument,
    machine_option,
    placement_options,
    probe_option,
    ssh_options,
)
from ddlrun.cli.options.types import Choice, WholeNumber
from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, parse_topology


@click.command("gen-rankfile", cls=Sections)
@argument("topology")
@hosts_argument
@hostfile_option
@machine_option(f"probe if HOSTS is this host, otherwise {ASSUMED_PRESET}")
@probe_option
@option(
    "Hosts", "--packages", type=WholeNumber(1, 256), metavar="N", help="Packages per host; needs --cores-per-package.",
)  # fmt: skip
@option("Hosts", "--cores-per-package", type=WholeNumber(1, 4096), metavar="N",
        help="Cores per package; needs --packages.")  # fmt: skip
@ssh_options
@placement_options
@option(
    "Topology", "--rank-order", type=Choice([order.value for order in RankOrder]), default=RankOrder.DDL.value,
    show_default=True, help=f"{ORDER_HELP}. Without --mode, ddlrun launch uses host.",
)  # fmt: skip
@option(
    "Output", "--open-mpi", type=Choice(["4", "5"]),
    help="Where no file suits Open MPI 4.1 and 5.0, write one for this version alone.",
)  # fmt: skip
@option("Output", "-o", "--output", metavar="FILE", show_default="standard output",
        help="Write the rank file to FILE, completely or not at all.")  # fmt: skip
def command(topology: str, hosts: str | None, output: str | None, **options: Any) -> None:  # noqa: ANN401 - click's own
    """Write the Open MPI rank file of TOPOLOGY on HOSTS.

    TOPOLOGY is XxYxZ[xA]: X ranks per host, Y hosts per rack, Z racks, A aisles; missing dimensions are 1.

    HOSTS is a list such as n[01-06], rack by rack, or @HOSTFILE; default: the hosts of the current scheduler job, or
    this host.
    """
    if hosts is not None and topology[:1].isalpha() and re.fullmatch(r"\d+(x\d+)*", hosts):
        raise InputError(f"{topology} {hosts}: the topology comes first: ddlrun gen-rankfile {hosts} {topology}")
    blocks = generate_rankfile(parse_topology(topology), hosts, options, ConsoleReporter())
    write_atomically(output or "-", blocks)
