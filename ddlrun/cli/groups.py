"""Groups of commands, which import a command only when it is used."""

import gc
import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ddlrun.wording import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group that imports a command only when it is used."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        sections: Mapping[str, Mapping[str, str]],
        package: str,
        synonyms: Mapping[str, str],
        **kwargs: Any,  # noqa: ANN401 - click's own
    ) -> None:
        """Set the help's headings with their commands, the package of these, and the commands for words of others."""
        super().__init__(*args, **kwargs)
        self.sections, self._package, self._synonyms = sections, package, synonyms
        self._summaries = {name: text for names in sections.values() for name, text in names.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; `help COMMAND` is `COMMAND --help`, and no word is --help."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args and args[0].startswith("-") and not ctx.resilient_parsing:
            self._check_option(ctx, args[0])
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])

    def _check_option(self, ctx: click.Context, word: str) -> None:
        """Raise UsageError where the first word is an option that only commands have, or none at all."""
        name = word.partition("=")[0]
        names = [option for param in self.get_params(ctx) for option in param.opts]
        if name == "--" or name in names:
            return
        hint = did_you_mean(name, (known for known in names if known.startswith("--")), self._synonyms)
        first = next(iter(self._summaries))
        place = hint or f"; options come after a command, as in {ctx.command_path} {first} {name}"
        raise click.UsageError(f"no such option {name}{place}", ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word. Raises UsageError with a suggestion where there is none."""
        name, names = args[0], self._summaries
        if name not in names and not ctx.resilient_parsing:
            hint = did_you_mean(name, names, self._synonyms)
            if "launch" in names and (os.path.isfile(name) or name.endswith(".py")):
                hint = f" (did you mean {ctx.command_path} launch {name}?)"
            raise click.UsageError(f"no such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands under their headings, each with the first sentence of its help."""
        for heading, summaries in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([*summaries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the completions of a command's name, or of an option of the group."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - 0.6 ms, for a shell's completion alone

        named = ((name, text) for name, text in self._summaries.items() if name.startswith(incomplete))
        items = [CompletionItem(name, help=text) for name, text in named]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands' names."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in self._summaries:
            return None
        module = importlib.import_module(f"{self._package}.{cmd_name.replace('-', '_')}")
        gc.freeze()
        gc.enable()
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(cmd_name)
        return command
