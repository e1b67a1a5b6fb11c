"""Options that several commands share, under headings."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ddlrun.cli.console import print_note
from ddlrun.cli.options.configuration import SHARED, apply_configuration, describe_values
from ddlrun.cli.options.names import naming_unknown_options, note_repeated_values
from ddlrun.cli.options.types import Choice
from ddlrun.errors import InputError, PlacementError
from ddlrun.plugins import plugin_names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Parameters for which an empty value means something: no arguments, no signals.
MAY_BE_EMPTY = frozenset(("mpi_args", "forward_signals"))
# The headings of a command's help, in this order.
HEADINGS = (
    "Scheduler", "Job", "Resources", "Software", "Hosts", "Network", "Topology", "Placement", "Frameworks",
    "Training step", "Measurement", "MPI", "Environment", "Run", "Container", "Debugging", "Checks",
    "Restarts", "Termination", "Horovod", "Output", "Other programs", "Other",
)  # fmt: skip


class Sections(click.Command):
    """A command whose help shows its options under headings."""

    borrowed: ClassVar[Sequence[click.Parameter]] = ()
    """Options of another command that this one takes, too. They are in the help of the other one."""
    works_without_configuration: ClassVar[bool] = False
    """Whether a damaged config file has a note instead of an error."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, which click keeps from the first context, in whatever program that was."""
        return ["-h", "--help"]

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
        """Parse; a mistyped name is reported with the nearest one, a word too many with the usage."""
        params = self.get_params(ctx)
        if args[:1] in (["-h"], ["--help"]) and "--help-all" not in args:
            args = args[:1]  # whatever follows
        names = {param.name for param in params}
        # --config-file applies the configuration itself. logs, top and the like work beside a damaged file.
        applies = "config_file" not in names and not names.isdisjoint(SHARED)
        if applies and not (ctx.resilient_parsing or {"-h", "--help"} & set(args)):
            self._apply_configuration(ctx)
        note_repeated_values(ctx, args, params)
        may_be_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        with naming_unknown_options(ctx, tuple(args), params):
            rest = super().parse_args(ctx, args)
        if rest and not (may_be_more or ctx.resilient_parsing):
            usage = " ".join([ctx.command_path, *self.collect_usage_pieces(ctx)])
            raise click.UsageError(f"{rest[0]!r}: unexpected argument; write {usage}", ctx)
        return rest

    def _apply_configuration(self, ctx: click.Context) -> None:
        """Apply the values of config files and variables that say how hosts are reached. Raises InputError."""
        try:
            apply_configuration(ctx, only=SHARED)
        except InputError as error:
            if not self.works_without_configuration:
                raise
            print_note(f"{error}; the values of config files and variables are left out")

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; before an error about its input, print the options that are not on the command line."""
        try:
            return super().invoke(ctx)
        except (InputError, PlacementError):
            if values := describe_values(ctx):
                print_note(f"set elsewhere: {values}")
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the completions of an option's name; those of a file among the arguments of the script."""
        script = next((param for param in self.params if param.name == "args"), None)
        if script is not None and ctx.params.get("script"):
            return script.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


class SectionsOfRuns(Sections):
    """A command that lists or ends runs, also beside a damaged config file."""

    works_without_configuration = True


class CompletedParameter(click.Parameter):
    """An option or an argument whose values a shell can complete."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the completions of a value."""
        from ddlrun.cli.options.completers import complete_parameter  # noqa: PLC0415 - 10 ms, for a shell's completion alone

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
