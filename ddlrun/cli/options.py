"""Options that several commands have, under headings."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from ddlrun.errors import InputError
from ddlrun.mapping.placement import BINDINGS, PlacementPolicy
from ddlrun.remote.agent import LAUNCHERS
from ddlrun.schedulers import TITLES

COUNT = click.IntRange(min=1)


class Sections(click.Command):
    """A command whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Option(click.Option):
    """An option that knows its heading."""

    def __init__(self, *args: Any, section: str = "Other", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.section = section


def option(section: str, *names: str, **kwargs: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - click's own
    """Declare an option under a heading."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def all_of(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Declare several options at once, in their order."""

    def declare(function: Any) -> Any:  # noqa: ANN401 - click's own
        for one in reversed(options):
            function = one(function)
        return function

    return declare


ssh_options = all_of(
    option("Hosts", "-p", "--ssh-port", type=click.IntRange(1, 65535), help="Port of ssh on the hosts."),
    option("Hosts", "-i", "--ssh-identity-file", metavar="FILE", help="Key for ssh to the hosts."),
)
job_from = all_of(
    option(
        "Hosts", "--scheduler", type=click.Choice(["auto", "none", *TITLES]), default="auto", show_default=True,
        help="Take hosts that are not named from this scheduler's job; auto: the one that we run in, if any.",
    ),
    option(
        "Hosts", "--launcher", type=click.Choice(["auto", *LAUNCHERS]), default="auto", show_default=True,
        help="What starts daemons on the hosts; auto: the scheduler's own in its job, else ssh.",
    ),
)  # fmt: skip
network_options = all_of(
    option(
        "Hosts", "--network", metavar="CIDR",
        help="Subnet that the hosts talk over, as in 10.0.0.0/16; default: the fastest that all share.",
    ),
    option(
        "Hosts", "--network-interface", metavar="NAME,NAME",
        help="Interfaces that they talk over; each host uses those that it has.",
    ),
)  # fmt: skip


def _check_build(ctx: click.Context, param: click.Parameter, value: object) -> None:
    from ddlrun.cli.check_build import check_build  # noqa: PLC0415 - for this option alone

    check_build(ctx, param, value)


build_option = option(
    "Checks", "-cb", "--check-build", is_flag=True, is_eager=True, expose_value=False, callback=_check_build,
    help="Show what the frameworks of this Python can do, as their libraries say; start nothing.",
)  # fmt: skip
start_timeout = option(
    "Hosts", "--start-timeout", type=click.FloatRange(min=1), default=30.0, show_default=True,
    help="Seconds until hosts that have not answered are given up.",
)  # fmt: skip
check_options = all_of(
    network_options,
    option("Hosts", "--tcp", is_flag=True, help="TCP between hosts, whatever else there is: no RDMA."),
    start_timeout,
    option("Checks", "--skip-checks", is_flag=True, help="Do not check the hosts first (see ddlrun check)."),
    option("Checks", "--only-checks", metavar="NAMES", help="Check these alone, as in mpi,tcp."),
)  # fmt: skip
placement_options = all_of(
    option("Placement", "--cores-per-rank", type=COUNT, help="Cores of each rank; default: an equal share of all."),
    option("Placement", "--reserve-cores", type=COUNT, help="Cores of each host that are left to the system."),
    option(
        "Placement", "--bind", type=click.Choice(BINDINGS), default="core", show_default=True,
        help="What a rank may run on: its own cores, or all of their NUMA nodes, packages or host (none).",
    ),
    option(
        "Placement", "--spread", "packing", flag_value="spread",
        help="With fewer ranks than GPUs: take GPUs of all packages in turn.",
    ),
    option(
        "Placement", "--pack", "packing", flag_value="pack", help="Use as few packages as hold the ranks."
    ),
    option(
        "Placement", "--threads-per-core", type=COUNT,
        help="Hardware threads of a core that a rank uses, an OpenMP thread each; default: all, with one.",
    ),
    option("Placement", "--gpu-order", metavar="N,N,...", help="GPUs in the order of local ranks; default: 0,1,2..."),
    option("Placement", "--overload", is_flag=True, help="More ranks than cores may share cores."),
)  # fmt: skip


def read_policy(options: Mapping[str, Any]) -> PlacementPolicy:
    """Turn placement options into a Policy. Raises InputError on a list of GPUs that is none."""
    order = options["gpu_order"]
    words = str(order).split(",") if order is not None else []
    if any(not (word.isascii() and word.isdigit()) for word in words) or len(set(words)) < len(words):
        raise InputError(f"--gpu-order {order!r}: write each GPU's number once, as in 2,3,0,1")
    if options["packing"] not in (None, "spread", "pack"):
        raise InputError(f"placement.packing: {options['packing']!r} is neither spread nor pack")
    return PlacementPolicy(
        reserve_cores=options["reserve_cores"] or 0,
        cores_per_rank=options["cores_per_rank"],
        bind=options["bind"],
        packing=options["packing"],
        threads_per_core=options["threads_per_core"],
        gpu_order=tuple(map(int, words)) if order is not None else None,
        overload=options["overload"],
    )
