"""Exit codes of ddlrun itself, moved out of the way of the script's: --exit-code-base."""

from collections.abc import Mapping, Sequence

import click

from ddlrun.cli.argv import match_option, options_by_name
from ddlrun.errors import OTHERWISE, shift_own_code

OPTION = "--exit-code-base"
VARIABLE = "DDLRUN_EXIT_CODE_BASE"
MOST_BASE = 255 - OTHERWISE


class ExitCodes:
    """The exit codes of a call of ddlrun."""

    def __init__(self) -> None:
        self.base = 0
        """The value of --exit-code-base."""

    def of_ddlrun(self, code: int) -> int:
        """Return the exit code for a code that is ddlrun's own, not the script's."""
        return shift_own_code(code, self.base)


def find_exit_codes(ctx: click.Context) -> ExitCodes:
    """Return the exit codes of the call of ddlrun that a context belongs to."""
    return ctx.find_object(ExitCodes) or ExitCodes()


def set_base(ctx: click.Context, _param: click.Parameter, base: int) -> int:
    """Set the base of the exit codes: the callback of --exit-code-base."""
    find_exit_codes(ctx).base = base
    return base


def set_base_early(ctx: click.Context, args: Sequence[str], environ: Mapping[str, str]) -> None:
    """Set the base before click parses a command line, as errors in it have exit codes, too.

    Only words before the first wrong one count. A value that is no number is left to click.
    """
    text = environ.get(VARIABLE, "")
    options, rest = options_by_name(ctx.command.get_params(ctx)), list(args)
    while rest and rest[0].startswith("-") and (match := match_option(rest[0], options)) is not None:
        if OPTION in match.option.opts:
            text = rest[0].partition("=")[2] if "=" in rest[0] else "".join(rest[1:2])
        del rest[: match.words]
    if text.isascii() and text.isdigit() and int(text) <= MOST_BASE:
        find_exit_codes(ctx).base = int(text)
