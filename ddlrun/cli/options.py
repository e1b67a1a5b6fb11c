"""Options that several commands share, under headings."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from ddlrun.cli.inputs import DEFAULT_PROBE_SECONDS
from ddlrun.errors import InputError
from ddlrun.mapping.policy import BINDINGS, PlacementPolicy
from ddlrun.remote.agent import LAUNCHERS
from ddlrun.schedulers import TITLES

COUNT = click.IntRange(min=1)


class Sections(click.Command):
    """A command whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Option(click.Option):
    """An option with a heading."""

    def __init__(self, *args: Any, section: str = "Other", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.section = section


def option(section: str, *names: str, **kwargs: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - click's own
    """Declare an option under a heading."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Declare several options, in this order."""

    def declare(function: Any) -> Any:  # noqa: ANN401 - click's own
        for declare_option in reversed(options):
            function = declare_option(function)
        return function

    return declare


hostfile_option = option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one per line.")
ssh_options = option_group(
    option(
        "Hosts", "-p", "--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of sshd on the hosts."
    ),
    option("Hosts", "-i", "--ssh-identity-file", metavar="FILE", help="Private key for ssh to the hosts."),
)
scheduler_options = option_group(
    option(
        "Hosts", "--scheduler", type=click.Choice(["auto", "none", *TITLES]), default="auto", show_default=True,
        help="Take hosts that are not named from the job of this scheduler; auto: from the current job, if any.",
    ),
    option(
        "Hosts", "--launcher", type=click.Choice(["auto", *LAUNCHERS]), default="auto", show_default=True,
        help="Program that starts daemons on the hosts; auto: the scheduler's own inside its job, else ssh.",
    ),
)  # fmt: skip
network_options = option_group(
    option(
        "Hosts", "--network", metavar="CIDR",
        help="Subnet that connects the hosts, such as 10.0.0.0/16; default: the fastest one that all hosts share.",
    ),
    option(
        "Hosts", "--network-interface", metavar="NAME,NAME",
        help="Interfaces that connect the hosts; each host uses those that it has.",
    ),
)  # fmt: skip


def _show_builds(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        from ddlrun.cli.check_build import show_builds  # noqa: PLC0415 - only for this option

        show_builds(ctx)


check_build_option = option(
    "Checks", "-cb", "--check-build", is_flag=True, is_eager=True, expose_value=False, callback=_show_builds,
    help="Show what the frameworks in this Python were built with, and start nothing.",
)  # fmt: skip
start_timeout_option = option(
    "Hosts", "--start-timeout", type=click.FloatRange(min=1), default=30.0, show_default=True, metavar="SECONDS",
    help="Give up on hosts that have not answered within this time.",
)  # fmt: skip
probe_timeout_option = option(
    "Hosts", "--timeout", type=click.FloatRange(min=0.1), default=DEFAULT_PROBE_SECONDS, show_default=True,
    metavar="SECONDS", help="Give up on hosts that have not answered within this time.",
)  # fmt: skip
check_options = option_group(
    network_options,
    option("Hosts", "--tcp", is_flag=True, help="Use TCP between hosts, never RDMA."),
    start_timeout_option,
    option("Checks", "--skip-checks", is_flag=True, help="Skip the checks of the hosts (see ddlrun check)."),
    option("Checks", "--only-checks", metavar="NAMES", help="Run only these checks, such as mpi,tcp."),
)  # fmt: skip
placement_options = option_group(
    option("Placement", "--cores-per-rank", type=COUNT, metavar="N",
           help="Cores per rank; default: an equal share of all cores."),
    option("Placement", "--reserve-cores", type=COUNT, metavar="N", help="Leave N cores of each host to the system."),
    option(
        "Placement", "--bind", type=click.Choice(BINDINGS), default="core", show_default=True,
        help="Bind a rank to its own cores, to all cores of their NUMA nodes or packages, or not at all (none).",
    ),
    option(
        "Placement", "--spread", "packing", flag_value="spread",
        help="With fewer ranks than GPUs, take GPUs from all packages in turn.",
    ),
    option("Placement", "--pack", "packing", flag_value="pack", help="Use as few packages as possible."),
    option(
        "Placement", "--threads-per-core", type=COUNT, metavar="N",
        help="Use N hardware threads per core, each with an OpenMP thread; "
        "default: all of them, with one OpenMP thread per core.",
    ),
    option("Placement", "--gpu-order", metavar="N,N,...", help="GPUs in the order of local ranks; default: 0,1,2..."),
    option("Placement", "--overload", is_flag=True, help="Let ranks share cores if there are more ranks than cores."),
)  # fmt: skip


def read_policy(options: Mapping[str, Any]) -> PlacementPolicy:
    """Read the placement options. Raises InputError where one is malformed."""
    if options["packing"] not in (None, "spread", "pack"):
        raise InputError(f"placement.packing: {options['packing']!r} is unknown; write spread or pack")
    return PlacementPolicy(
        reserve_cores=options["reserve_cores"] or 0,
        cores_per_rank=options["cores_per_rank"],
        bind=options["bind"],
        packing=options["packing"],
        threads_per_core=options["threads_per_core"],
        gpu_order=None if options["gpu_order"] is None else _parse_gpu_order(str(options["gpu_order"])),
        overload=options["overload"],
    )


def _parse_gpu_order(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if any(not (word.isascii() and word.isdigit()) for word in words) or len(set(words)) < len(words):
        raise InputError(
            f"--gpu-order {text!r} is not a list of different numbers; write each GPU's number once, such as 2,3,0,1"
        )
    return tuple(map(int, words))
