"""ddlrun gen-rankfile: write the Open MPI rank file of a topology and hosts."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ddlrun import __version__
from ddlrun.application.inputs import find_job, reach, read_hosts, read_machines, ssh_launcher
from ddlrun.application.output_files import write_atomically
from ddlrun.application.read_policy import read_policy
from ddlrun.cli.options import (
    ORDER_HELP,
    Sections,
    argument,
    hostfile_option,
    hosts_argument,
    load_option,
    machine_option,
    option,
    placement_options,
    probe_option,
    ssh_options,
)
from ddlrun.cli.value_types import Choice, WholeNumber
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.rack_layout import arrange
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.slot_notation import BOTH_MAJORS
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.remote.probe import check_distinct, is_local, probe
from ddlrun.topology import RankOrder, Topology, parse_topology

ASSUMED_PRESET = "s822lc"
# Options that state the machine.
SOURCES = ("machine", "packages", "probe", "load")


@click.command("gen-rankfile", cls=Sections)
@argument("topology")
@hosts_argument
@hostfile_option
@machine_option(f"probe if HOSTS is this host, otherwise {ASSUMED_PRESET}")
@probe_option
@load_option
@option(
    "Hosts",
    "--packages",
    type=WholeNumber(1, 256),
    metavar="N",
    help="Packages per host; needs --cores-per-package.",
)
@option("Hosts", "--cores-per-package", type=WholeNumber(1, 4096), metavar="N",
        help="Cores per package; needs --packages.")  # fmt: skip
@ssh_options
@placement_options
@option(
    "Topology",
    "--rank-order",
    type=Choice([order.value for order in RankOrder]),
    default=RankOrder.DDL.value,
    show_default=True,
    help=f"{ORDER_HELP}. Without --mode, ddlrun launch uses host.",
)
@option(
    "Output",
    "--open-mpi",
    type=Choice(["4", "5"]),
    help="Where no file suits Open MPI 4.1 and 5.0, write one for this version alone.",
)
@option("Output", "-o", "--output", metavar="FILE", show_default="standard output",
        help="Write the rank file to FILE, completely or not at all.")  # fmt: skip
def command(topology: str, hosts: str | None, rank_order: str, output: str | None, **options: Any) -> None:  # noqa: ANN401 - click's own
    """Write the Open MPI rank file of TOPOLOGY on HOSTS.

    TOPOLOGY is XxYxZ[xA]: X ranks per host, Y hosts per rack, Z racks, A aisles; missing dimensions are 1.

    HOSTS is a list such as n[01-06], rack by rack, or @HOSTFILE; default: the hosts of the current scheduler job, or
    this host.
    """
    if hosts is not None and topology[:1].isalpha() and re.fullmatch(r"\d+(x\d+)*", hosts):
        raise InputError(f"{topology} {hosts}: the topology comes first: ddlrun gen-rankfile {hosts} {topology}")
    shape = parse_topology(topology)
    host_list = _read_hosts(shape, hosts, options["hostfile"])
    check_distinct(host_list, os.uname().nodename)
    policy = read_policy(options)
    stated = any(options[name] for name in SOURCES)
    if not stated and all(is_local(name, os.uname().nodename) for name in host_list.names):
        options["machine"] = "local"
    machines = _read_machines(host_list, options)
    placement = place(shape, host_list, machines, RankOrder(rank_order), policy)
    majors = (int(options["open_mpi"]),) if options["open_mpi"] else BOTH_MAJORS
    assumed = "" if stated or options["machine"] else f", assuming {machines[host_list.names[0]]}"
    title = f"by ddlrun {__version__}: ddlrun gen-rankfile {shape}, ranks in {rank_order} order{assumed}"
    blocks = render(placement, title, majors)
    for note in (*_assumptions(placement, stated=stated, preset=options["machine"]), *_notes(placement)):
        click.echo(f"ddlrun: note: {note}", err=True)
    write_atomically(output or "-", blocks)


def _read_hosts(topology: Topology, hosts: str | None, hostfile: str | None) -> HostList:
    """Return the hosts in the order of their racks, with notes on standard error."""
    job = None if hosts or hostfile else find_job("auto")
    host_list = read_hosts(hosts, hostfile, job=job)
    layout = arrange(TopologyRequest(topology=topology), host_list, choose=job is not None)
    for note in layout.notes:
        click.echo(f"ddlrun: note: {note}", err=True)
    return layout.hosts


def _assumptions(placement: Placement, *, stated: bool, preset: str | None) -> Iterator[str]:
    """Yield the notes on the machine; where it is not `stated`, the preset is `local` or None: the assumed one."""
    machine = placement.machines[0]
    if stated or preset is not None:
        yield from placement_notes(placement)
    if not stated and preset is not None:
        yield f"the host is this machine: {machine} ({machine.source}); describe another one with --machine PRESET|FILE"
    elif not stated:
        yield (
            f"each host is assumed to be {machine} (preset {ASSUMED_PRESET}); "
            "describe it with --machine PRESET|FILE, or probe it with --probe"
        )


def _notes(placement: Placement) -> Iterator[str]:
    """Yield the limits of the rank file."""
    if placement.shares_cores:
        yield "ranks share cores: Open MPI 5 needs --bind-to core:overload-allowed"
    if placement.policy.threads_per_core:
        yield "--threads-per-core: a rank file names whole cores; ddlrun launch binds ranks to some of their threads"
    if any("." in name for name in placement.hosts.names):
        yield (
            "mpirun cuts host names at the first dot, unless it gets --mca orte_keep_fqdn_hostnames 1 (Open MPI 4) "
            "or --prtemca prte_keep_fqdn_hostnames 1 (Open MPI 5); ddlrun launch sets these itself"
        )


def _read_machines(hosts: HostList, options: Mapping[str, Any]) -> dict[str, Machine]:
    """Return the machine of each host. Raises InputError where the options contradict each other."""
    packages, cores = options["packages"], options["cores_per_package"]
    sources = [options["machine"], packages is not None or cores is not None, options["probe"], options["load"]]
    if len([source for source in sources if source]) > 1:
        raise InputError(
            "--machine, --packages with --cores-per-package, --probe and --load exclude each other; give one of them"
        )
    if (packages is None) != (cores is None):
        raise InputError("--packages and --cores-per-package go together; give both, or use --machine")
    if packages is not None:
        from ddlrun.machine.preset import simple_machine  # noqa: PLC0415 - 8 ms, and 16 of YAML: for these options alone

        return dict.fromkeys(hosts.names, simple_machine(packages, cores))
    if options["probe"]:
        return probe(hosts, reach(ssh_launcher(options)))
    return read_machines(hosts, options["machine"] or (None if options["load"] else ASSUMED_PRESET), options["load"])
