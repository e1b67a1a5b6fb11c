"""ddlrun gen-rankfile: from a topology and hosts to an Open MPI rank file."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ddlrun import __version__
from ddlrun.cli.inputs import SSH, find_job, load_machines, machines_of, reach, read_hosts, read_preset, ssh_way
from ddlrun.cli.options import Sections, option, placement_options, read_policy, ssh_options
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import Placement, place, placement_notes
from ddlrun.mapping.rack_layout import arrange
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.remote.probe import check_distinct, probe
from ddlrun.topology import RankOrder, parse_topology

ASSUMED = "s822lc"


@click.command("gen-rankfile", cls=Sections)
@click.argument("topology")
@click.argument("hosts", required=False)
@option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line.")
@option(
    "Hosts",
    "--machine",
    metavar="PRESET|FILE",
    help="What each host is made of: a preset, a file of YAML or lstopo XML, a saved host's folder, or 'local'.",
)
@option("Hosts", "--probe", is_flag=True, help="Ask each host (by ssh) what it is made of.")
@option("Hosts", "--load", metavar="DIR", help="Take the machines that ddlrun probe --save wrote.")
@option("Hosts", "--sockets", type=click.IntRange(1, 256), help="Packages (sockets) of each host; with --cores.")
@option("Hosts", "--cores", type=click.IntRange(1, 4096), help="Cores of each package; with --sockets.")
@ssh_options
@placement_options
@option(
    "Rank file",
    "--rank-order",
    type=click.Choice([order.value for order in RankOrder]),
    default=RankOrder.DDL.value,
    show_default=True,
    help="ddl: rank = x*Y*Z + y*Z + z, round robin over hosts; host: contiguous on each host.",
)
@option("Rank file", "-o", "--output", metavar="FILE", help="Write to FILE, whole or not at all; default: stdout.")
def command(topology: str, hosts: str | None, rank_order: str, output: str | None, **options: Any) -> None:  # noqa: ANN401 - click's own
    """Write the Open MPI rank file of TOPOLOGY on HOSTS.

    TOPOLOGY is XxYxZ: X ranks per host, Y hosts per rack, Z racks (a fourth number: aisles); missing
    ones are 1. HOSTS is a list such as n1,n2 or n[01-06], ordered rack by rack, or @HOSTFILE;
    without it, those of the scheduler's job that we run in, or this machine.
    """
    shape = parse_topology(topology)
    job = None if hosts or options["hostfile"] else find_job("auto")
    arranged = arrange(
        TopologyRequest(topology=shape), read_hosts(hosts, options["hostfile"], job=job), choose=job is not None
    )
    listed = arranged.hosts
    for note in arranged.said:
        click.echo(f"ddlrun: note: {note}", err=True)
    check_distinct(listed, os.uname().nodename)
    policy = read_policy(options)
    machines = _machines(listed, options)
    placement = place(shape, listed, machines, RankOrder(rank_order), policy)
    blocks = render(placement, f"by ddlrun {__version__}: ddlrun gen-rankfile {shape}")
    _note(placement, assumed=not any(options[way] for way in ("machine", "sockets", "probe", "load")))
    if output is None:
        sys.stdout.writelines(blocks)
        sys.stdout.flush()
    else:
        write_atomically(output, blocks)


def _note(placement: Placement, *, assumed: bool) -> None:
    """Say on standard error what the rank file rests on."""
    for note in [] if assumed else placement_notes(placement):
        click.echo(f"ddlrun: note: {note}", err=True)
    if placement.shares_cores:
        click.echo("ddlrun: note: ranks share cores: Open MPI 5 needs --bind-to core:overload-allowed", err=True)
    if assumed:
        click.echo(
            f"ddlrun: note: each host is assumed to be {placement.machines[0]} (preset {ASSUMED}); "
            "say what it is: --machine PRESET|FILE, or let ddlrun look: --probe",
            err=True,
        )
    if any("." in name for name in placement.hosts.names):
        click.echo(
            "ddlrun: note: mpirun cuts names at the first dot, unless it gets --mca orte_keep_fqdn_hostnames 1 "
            "(Open MPI 4) or --prtemca prte_keep_fqdn_hostnames 1 (Open MPI 5); ddlrun launch sees to it",
            err=True,
        )


def _machines(hosts: HostList, options: Mapping[str, Any]) -> dict[str, Machine]:
    sockets, cores = options["sockets"], options["cores"]
    ways = [options["machine"], sockets is not None or cores is not None, options["probe"], options["load"]]
    if sum(map(bool, ways)) > 1:
        raise InputError("--machine, --sockets with --cores, --probe and --load exclude each other; give one of them")
    if (sockets is None) != (cores is None):
        raise InputError("--sockets and --cores go together: how many packages, and how many cores in each")
    if sockets is not None:
        from ddlrun.machine.preset import simple_machine  # noqa: PLC0415 - msgspec, 15 ms

        return machines_of(hosts, simple_machine(sockets, cores))
    if options["probe"]:
        return probe(hosts, reach(ssh_way(options)))
    if options["load"]:
        return load_machines(options["load"], hosts)
    preset = read_preset(options["machine"] or ASSUMED)
    if preset is None:
        local = read_hosts("localhost", None)
        preset = probe(local, reach(SSH))["localhost"]
    return machines_of(hosts, preset)


def write_atomically(path: str, blocks: Iterable[str], option: str = "-o") -> None:
    """Write blocks to a new file beside `path`, then put it in its place. Raises InputError where it cannot."""
    import tempfile  # noqa: PLC0415 - 8 ms, for -o alone

    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe is written to, never replaced
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(blocks)
        except OSError as error:
            raise InputError(f"{option} {path}: {error.strerror}") from error
        return
    path = os.path.realpath(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path) or ".")
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(blocks)
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(handle, 0o666 & ~umask)
        os.replace(name, path)
    except OSError as error:
        os.unlink(name)
        raise InputError(f"{option} {path}: {error.strerror}") from error
    except BaseException:
        os.unlink(name)
        raise
