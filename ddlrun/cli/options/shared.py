"""Options that several commands share."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from ddlrun.application.inputs import DEFAULT_PROBE_SECONDS
from ddlrun.cli.console import print_note
from ddlrun.cli.options import SchedulerType, argument, option, option_group
from ddlrun.cli.options.types import COUNT, Choice, Time, WholeNumber
from ddlrun.errors import InputError
from ddlrun.mapping.policy import BINDINGS, CORE_KINDS
from ddlrun.remote.agent import LAUNCHERS
from ddlrun.schedulers import GROUP, READERS


def note_named_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return hosts; print a note where they have the name of a file."""
    if value is not None and not value.startswith("@") and os.path.isfile(value):
        print_note(f"{value} is taken as the name of a host; to read hosts from the file of this name, write @{value}")
    return value


def _choose_hosts(ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> str | None:
    """Return the hosts of the argument or of -H. Raises InputError for both, several words, or a topology."""
    named: str | None = ctx.params.pop("named_hosts", None)
    if len(values) > 1:
        raise InputError(f"hosts are one word: {','.join(values)} instead of {' '.join(values)}")
    takes_topology = any("--topology" in param.opts for param in ctx.command.params)
    if values and takes_topology and re.fullmatch(r"\d+(x\d+)+", values[0]):
        raise InputError(f"{values[0]} is a topology, not a host; write --topology {values[0]}")
    if values and named is not None:
        raise InputError(f"hosts are given twice: {values[0]!r} and -H {named}; leave one of them out")
    return note_named_file(ctx, _param, values[0] if values else named)


hosts_argument = option_group(
    argument("hosts", nargs=-1, metavar="[HOSTS]", callback=_choose_hosts),
    option(
        "Hosts", "-H", "--host", "--hosts", "named_hosts", metavar="LIST", is_eager=True,
        help="The same as the argument HOSTS.",
    ),
)  # fmt: skip
hostfile_option = option(
    "Hosts", "--hostfile", metavar="FILE",
    help="Read the hosts from FILE, one per line, with slots=N and rack=NAME where known.",
)  # fmt: skip
ssh_options = option_group(
    option("Hosts", "-p", "--ssh-port", type=WholeNumber(1, 65535), metavar="PORT", help="Port of sshd on the hosts."),
    option("Hosts", "-i", "--ssh-identity-file", metavar="FILE", help="Private key for ssh to the hosts."),
)
scheduler_options = option_group(
    option(
        "Hosts", "--scheduler", type=SchedulerType(["auto", "none", *READERS], GROUP),
        default="auto", show_default=True,
        help="If no hosts are named, use those of this scheduler's job; auto: of the current job, if any.",
    ),
    option(
        "Hosts", "--launcher", type=Choice(["auto", *LAUNCHERS]), default="auto", show_default=True,
        help="Program that starts mpirun's daemons or ddlrun's agents on the hosts; auto: the scheduler's own inside "
        "its job, otherwise ssh.",
    ),
)  # fmt: skip


def machine_option(default: str | None = None) -> Callable[[Any], Any]:
    """Declare --machine; `default` describes the machine that a command uses without it."""
    return option(
        "Hosts", "--machine", metavar="PRESET|FILE|DIR", show_default=default,
        help="Use this machine for every host instead of probing: a preset, a file of YAML or lstopo XML, local for "
        "this host's, or DIR/HOST. DIR: the hosts and machines that probe --save wrote there.",
    )  # fmt: skip


probe_option = option("Hosts", "--probe", is_flag=True, help="Probe the machine of each host over ssh.")
UNREACHABLE_HELP = "Give up on hosts that do not answer within this time."
probe_timeout_option = option(
    "Hosts", "--start-timeout", "timeout", type=Time(0.1), default=f"{DEFAULT_PROBE_SECONDS:g}",
    show_default=True, metavar="TIME", help=UNREACHABLE_HELP,
)  # fmt: skip
host_options = option_group(hostfile_option, ssh_options, probe_timeout_option)
racks_option = option("Topology", "--racks", type=COUNT, metavar="N", help="Z: racks.")
TOPOLOGY_HELP = "X ranks per host, Y hosts per rack, Z racks, A aisles."
ORDER_HELP = "host: consecutive ranks on each host; ddl: round robin over hosts, rank = x*Y*Z + y*Z + z"
placement_options = option_group(
    option("Placement", "--cores-per-rank", type=COUNT, metavar="N", help="Cores per rank.",
           show_default="an equal share of all usable cores"),
    option("Placement", "--reserve-cores", type=COUNT, metavar="N", help="Leave N cores of each host to the system."),
    option(
        "Placement", "--bind", type=Choice(BINDINGS), default="core", show_default=True,
        help="Bind each rank to its own cores, to all cores of their NUMA nodes or packages, or not at all (none).",
    ),
    option(
        "Placement", "--packing", type=Choice(["spread", "pack"]), show_default="the first GPUs",
        help="GPUs to use with fewer ranks than GPUs. spread: those of all packages in turn. pack: those of as few "
        "packages as possible.",
    ),
    option(
        "Placement", "--threads-per-core", type=COUNT, metavar="N",
        show_default="all of them, with one OpenMP thread per core",
        help="Use N hardware threads per core, each with an OpenMP thread.",
    ),
    option("Placement", "--gpu-order", metavar="N,...", show_default="0,1,2,...",
           help="GPUs of local ranks 0, 1, 2, ..., in this order."),
    option(
        "Placement", "--core-kinds", type=Choice(CORE_KINDS), default="all", show_default=True,
        help="Cores to use on a machine with fast and slow cores. all: an equal part of each kind for each rank. "
        "fast: the fastest kind alone.",
    ),
)  # fmt: skip
