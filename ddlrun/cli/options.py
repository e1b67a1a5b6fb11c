"""Options that several commands share, under headings."""

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ddlrun.application.inputs import DEFAULT_PROBE_SECONDS
from ddlrun.cli.configuration import SHARED, apply_configuration, describe_values
from ddlrun.cli.option_names import naming_unknown_options, note_repeated_hosts
from ddlrun.cli.value_types import COUNT, Choice, Time, WholeNumber
from ddlrun.errors import InputError, PlacementError
from ddlrun.managers import AUTO, MANAGERS
from ddlrun.mapping.policy import BINDINGS, CORE_KINDS
from ddlrun.network.subnet_selection import parse_cidr
from ddlrun.plugins import plugin_names
from ddlrun.remote.agent import LAUNCHERS
from ddlrun.schedulers import GROUP, READERS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Parameters for which an empty value means something: no arguments, no signals.
MAY_BE_EMPTY = frozenset(("mpi_args", "forward_signals"))
# The headings of a command's help, in this order.
HEADINGS = (
    "Scheduler", "Job", "Resources", "Software", "Hosts", "Network", "Topology", "Placement", "Frameworks",
    "Large models", "Training step", "Measurement", "MPI", "Environment", "Run", "Container", "Debugging", "Checks",
    "Restarts", "Termination", "Horovod", "Output", "Other",
)  # fmt: skip


class Sections(click.Command):
    """A command whose help shows its options under headings."""

    borrowed: ClassVar[Sequence[click.Parameter]] = ()
    """Options of another command that this one takes, too. They are in the help of the other one."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters and those that it borrows."""
        return [*super().get_params(ctx), *self.borrowed]

    def own_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters in the command's help."""
        return super().get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.own_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section in sorted(sections, key=HEADINGS.index):
            with formatter.section(section):
                formatter.write_dl(sections[section])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a mistyped name is reported with the nearest one."""
        params = self.get_params(ctx)
        if args[:1] in (["-h"], ["--help"]) and "--help-all" not in args:
            args = args[:1]  # whatever follows
        names = {param.name for param in params}
        # --config-file applies the configuration itself. logs, top and the like work beside a damaged file.
        applies = "config_file" not in names and not names.isdisjoint(SHARED)
        if applies and not (ctx.resilient_parsing or {"-h", "--help"} & set(args)):
            apply_configuration(ctx, only=SHARED)
        note_repeated_hosts(ctx, args, params)
        with naming_unknown_options(ctx, tuple(args), params):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; before an error about its input, print the options that are not on the command line."""
        try:
            return super().invoke(ctx)
        except (InputError, PlacementError):
            if values := describe_values(ctx):
                click.echo(f"ddlrun: note: set elsewhere: {values}", err=True)
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the completions of an option's name; those of a file among the arguments of the script."""
        script = next((param for param in self.params if param.name == "args"), None)
        if script is not None and ctx.params.get("script"):
            return script.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


class CompletedParameter(click.Parameter):
    """An option or an argument whose values a shell can complete."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the completions of a value."""
        from ddlrun.cli.completers import complete_parameter  # noqa: PLC0415 - 10 ms, for a shell's completion alone

        items = complete_parameter(self, ctx, incomplete)
        return super().shell_complete(ctx, incomplete) if items is None else items


class Option(CompletedParameter, click.Option):
    """An option with a heading."""

    def __init__(self, *args: Any, section: str = "Other", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.section = section

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:  # noqa: ANN401 - click's own
        """Convert a value; refuse an empty one, as of an unset variable of a shell, where it would be ignored."""
        if value == "" and isinstance(self.type, click.types.StringParamType) and self.name not in MAY_BE_EMPTY:
            raise click.BadParameter("the value is empty; give one, or leave the option out", ctx, self)
        return super().type_cast_value(ctx, value)


class Argument(CompletedParameter, click.Argument):
    """An argument."""


class SchedulerType(Choice):
    """The name of a scheduler: one of ddlrun's own, or a plug-in's, which are searched for other names alone."""

    def __init__(self, choices: Sequence[str], group: str) -> None:
        """Keep the names of ddlrun's own, and the group of the plug-ins' entry points."""
        super().__init__(choices)
        self._group = group

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Convert a name; fail where there is no such scheduler."""
        if value not in self.choices and value in plugin_names(self._group):
            return value
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[str]]":
        """Return the completions of a name, with those of plug-ins."""
        names = click.Choice([*self.choices, *plugin_names(self._group)])
        return names.shell_complete(ctx, param, incomplete)


def option(section: str, *names: str, **kwargs: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - click's own
    """Declare an option under a heading."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def argument(name: str, **kwargs: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - click's own
    """Declare an argument."""
    return click.argument(name, cls=Argument, **kwargs)


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Declare several options, in this order."""

    def declare(function: Any) -> Any:  # noqa: ANN401 - click's own
        for declare_option in reversed(options):
            function = declare_option(function)
        return function

    return declare


def note_named_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return hosts; print a note where they have the name of a file."""
    if value is not None and not value.startswith("@") and os.path.isfile(value):
        click.echo(
            f"ddlrun: note: {value} is taken as the name of a host; to read hosts from the file of this name, "
            f"write @{value}",
            err=True,
        )
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


def _check_network(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return a subnet. Raises InputError where it is malformed, also on one host, where it has no effect."""
    if value is not None:
        parse_cidr(value)
    return value


network_options = option_group(
    option(
        "Network", "--network", metavar="CIDR", callback=_check_network,
        show_default="the fastest one that all hosts share",
        help="Subnet for the traffic between hosts, such as 10.0.0.0/16.",
    ),
    option(
        "Network", "--network-interface", metavar="NAME,...",
        help="Interfaces for the traffic between hosts; each host uses those that it has.",
    ),
)  # fmt: skip
tcp_option = option("Network", "--tcp", is_flag=True, help="Use TCP between hosts, never RDMA.")
encrypt_option = option(
    "Network", "--encrypt", is_flag=True,
    help="Encrypt the output of the ranks, and all supervision, on its way to ddlrun; MPI's traffic is not encrypted.",
)  # fmt: skip


def machine_option(default: str | None = None) -> Callable[[Any], Any]:
    """Declare --machine; `default` describes the machine that a command uses without it."""
    return option(
        "Hosts", "--machine", metavar="PRESET|FILE", show_default=default,
        help="Machine of every host: a preset, YAML, lstopo XML, DIR/HOST of probe --save, or local for this host.",
    )  # fmt: skip


load_option = option(
    "Hosts", "--load", metavar="DIR", help="Read the machines from DIR, where ddlrun probe --save wrote them."
)
probe_option = option("Hosts", "--probe", is_flag=True, help="Probe the machine of each host over ssh.")


def _show_builds(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        from ddlrun.cli.check_build import show_builds  # noqa: PLC0415 - 8 ms, for this option alone

        show_builds(ctx)


check_build_option = option(
    "Checks", "-cb", "--check-build", is_flag=True, is_eager=True, expose_value=False, callback=_show_builds,
    help="Show how the frameworks of this Python were built, and start nothing.",
)  # fmt: skip
skip_checks_option = option(
    "Checks", "--skip-checks", is_flag=True, help="Do not check the hosts first (see ddlrun check)."
)
UNREACHABLE_HELP = "Give up on hosts that do not answer within this time."
start_timeout_option = option(
    "Hosts", "--start-timeout", type=Time(1), default=30, show_default=True, metavar="TIME", help=UNREACHABLE_HELP
)
probe_timeout_option = option(
    "Hosts", "--start-timeout", "timeout", type=Time(0.1), default=f"{DEFAULT_PROBE_SECONDS:g}",
    show_default=True, metavar="TIME", help=UNREACHABLE_HELP,
)  # fmt: skip
check_options = option_group(
    network_options,
    tcp_option,
    encrypt_option,
    start_timeout_option,
    skip_checks_option,
    option("Checks", "--only-checks", metavar="NAME,...", help="Run only these checks, such as mpi,tcp."),
)
mpirun_option = option(
    "MPI", "--mpirun", metavar="FILE", show_default="the one beside this Python, otherwise the first on PATH",
    help="Use this mpirun.",
)  # fmt: skip
process_manager_option = option(
    "MPI", "--process-manager", type=Choice(MANAGERS), default=AUTO, show_default=True,
    help="Program that starts the ranks. auto: Open MPI's mpirun where it is installed and the program may use it, "
    "otherwise ddlrun itself. srun: Slurm's, inside a job of it.",
)  # fmt: skip
allow_root_option = option(
    "MPI", "--allow-run-as-root", is_flag=True, help="Allow root to start the job, as is usual in containers."
)
racks_option = option("Topology", "--racks", type=COUNT, metavar="N", help="Z: racks.")
GRACE_HELP = "Time that ranks have to exit between SIGTERM and SIGKILL."
TOPOLOGY_HELP = "X ranks per host, Y hosts per rack, Z racks, A aisles."
ORDER_HELP = "host: consecutive ranks on each host; ddl: round robin over hosts, rank = x*Y*Z + y*Z + z"
overload_option = option(
    "Placement", "--overload", is_flag=True, help="Let ranks share cores if there are more ranks than cores."
)
placement_options = option_group(
    option("Placement", "--cores-per-rank", type=COUNT, metavar="N", help="Cores per rank.",
           show_default="an equal share of all usable cores"),
    option("Placement", "--reserve-cores", type=COUNT, metavar="N", help="Leave N cores of each host to the system."),
    option(
        "Placement", "--bind", type=Choice(BINDINGS), default="core", show_default=True,
        help="Bind each rank to its own cores, to all cores of their NUMA nodes or packages, or not at all (none).",
    ),
    option(
        "Placement", "--spread", "packing", flag_value="spread",
        help="With fewer ranks than GPUs, use GPUs of all packages in turn.",
    ),
    option("Placement", "--pack", "packing", flag_value="pack", help="Use as few packages as possible."),
    option(
        "Placement", "--threads-per-core", type=COUNT, metavar="N",
        show_default="all of them, with one OpenMP thread per core",
        help="Use N hardware threads per core, each with an OpenMP thread.",
    ),
    option("Placement", "--gpu-order", metavar="N,...", show_default="0,1,2,...",
           help="GPUs of local ranks 0, 1, 2, ..., in this order."),
    overload_option,
    option(
        "Placement", "--core-kinds", type=Choice(CORE_KINDS), default="all", show_default=True,
        help="Cores to use on a machine with fast and slow cores. all: an equal part of each kind for each rank. "
        "fast: the fastest kind alone.",
    ),
)  # fmt: skip
