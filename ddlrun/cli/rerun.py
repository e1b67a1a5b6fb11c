"""ddlrun rerun: an earlier run again, with changes."""

import itertools
import os
import shlex

import click

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options import Option, Sections, argument
from ddlrun.cli.options.arguments import merge_arguments, parse_changes, strip_secrets
from ddlrun.cli.options.translation import translate
from ddlrun.cli.options.usual import USUAL_OPTIONS, format_usual_options
from ddlrun.errors import InputError
from ddlrun.runs.history import PastRun, find_run, read_past_run
from ddlrun.runs.store import state_folder

HELP = {"-h", "--help"}
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": True}
# Headings of launch's usual options that the help repeats.
HEADINGS = [heading for heading in USUAL_OPTIONS if heading != "Other"]


class Rerun(Sections):
    """The rerun command, which takes launch's options after the name of a run."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; a shell also completes launch's options and their values."""
        params = super().get_params(ctx)
        return (
            [*params, *(param for param in launch.params if isinstance(param, Option))]
            if ctx.resilient_parsing
            else params
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; take all words, with the -- that click would drop, unless they ask for help."""
        if HELP.intersection(itertools.takewhile(lambda word: word != "--", args)):
            return super().parse_args(ctx, ["--help"])
        return super().parse_args(ctx, args if ctx.resilient_parsing else ["--", *args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write launch's usual options, and the command's own."""
        format_usual_options(formatter, HEADINGS)
        super().format_options(ctx, formatter)


@click.command("rerun", cls=Rerun, context_settings=CONTEXT, options_metavar="[RUN] [OPTIONS] [--")
@argument("changes", nargs=-1, type=click.UNPROCESSED, metavar="ARGS...]")
def command(changes: tuple[str, ...]) -> int:
    """Launch an earlier run again, with changes.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    OPTIONS are those of ddlrun launch; the usual ones are below, and ddlrun launch --help-all shows all. They replace
    options of RUN that mean the same; the other options stay. ARGS are appended to the arguments of the script. The run
    gets a folder of its own.

    The working folder is that of RUN, and paths are relative to it. The environment is the present one.
    """
    params, root = launch.params, click.get_current_context().find_root()
    split = parse_changes(translate_changes(changes), params)
    past = _read(split.topology)
    words = merge_arguments(past.arguments, split, params)
    _enter(past)
    shown = shlex.join(strip_secrets(words, params))
    click.echo(f"ddlrun: rerun of {past.run.run} in {past.working_folder}: ddlrun launch {shown}", err=True)
    code: int = launch.main(args=list(words), prog_name="launch", standalone_mode=False, parent=root)
    return code


def translate_changes(words: tuple[str, ...]) -> list[str]:
    """Return the words after `ddlrun rerun` with the options of other launchers translated, after RUN, too."""
    leading = 1 if words and not words[0].startswith("-") else 0
    translated = translate(words[leading:], launch.params)
    translated.print_notes()
    return [*words[:leading], *translated.words]


def _read(text: str | None) -> PastRun:
    """Return the run that the user means. Raises InputError where its arguments are not known."""
    folder = find_run(text, state_folder(os.environ))
    past = read_past_run(folder)
    if past is None:
        raise InputError(f"run folder {folder}: there is no run.json in it, which has the arguments; launch it again")
    return past


def _enter(past: PastRun) -> None:
    """Change to the working folder of a run. Raises InputError."""
    try:
        os.chdir(past.working_folder)
    except OSError as error:
        raise InputError(f"run {past.run.run}: its working folder {past.working_folder}: {error.strerror}") from error
