"""ddlrun launch: place every rank, and run the job."""

from typing import Any

import click

from ddlrun.application.attempt import check_settings
from ddlrun.application.attempts import forget_outer_job, run_until_done
from ddlrun.application.options.programs import read_programs, split_programs
from ddlrun.application.options.settings import read_settings
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.arguments import launch_options, strip_secrets
from ddlrun.cli.options.configuration import forget_variables
from ddlrun.cli.options.job import job_options
from ddlrun.cli.options.launching import (
    SHIP_FOLDER,
    check_build_option,
    check_options,
    container_args_option,
    container_options,
)
from ddlrun.cli.options.notes import note_excluded, note_misplaced, note_secrets
from ddlrun.cli.options.translation import TranslatedArgv, translate
from ddlrun.cli.options.types import PORT, WholeNumber
from ddlrun.cli.options.usual import format_usual_help, help_all_option
from ddlrun.errors import InputError
from ddlrun.plan.settings import KEPT


class Launch(Sections):
    """The launch command, which takes options of other launchers too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate options of other launchers, then parse."""
        translated = translate(args, self.get_params(ctx))
        ctx.params |= {
            "translated": translated,
            "arguments": strip_secrets(translated.words, self.get_params(ctx)),
        }
        try:
            return super().parse_args(ctx, translated.words)
        except click.BadParameter as error:
            names = error.param.opts if error.param else []
            typed = ", ".join(translated.origins[name] for name in names if translated.origins.get(name, name) != name)
            if not typed:
                raise
            raise click.BadParameter(f"{error.message} (from `{typed}`)", error.ctx, error.param) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options on one screen."""
        format_usual_help(self, ctx, formatter)


@click.command("launch", cls=Launch, context_settings={"allow_interspersed_args": False})
@job_options
@check_options
@check_build_option(hidden=True)  # horovodrun's
@option(
    "Restarts", "--restarts", metavar="N", type=WholeNumber(min=0), default=0, show_default=True,
    help="Restart a failed job up to N times; DDLRUN_RESTART counts the restarts.",
)  # fmt: skip
@option(
    "Restarts", "--spare-hosts", metavar="LIST|extra",
    help="Hosts that replace failed hosts; extra: all hosts that --topology does not need.",
)  # fmt: skip
@option(
    "Restarts", "--min-topology", metavar="XxYxZ",
    help="Without spare hosts, restart with a smaller Y or Z, down to this topology.",
)  # fmt: skip
@option(
    "Run", "--ship", metavar="code,env,PATH,...",
    help="Copy files to the local disk of each host and run there: SCRIPT's code, its Python environment or that of a "
    "lock file (env=FILE), paths.",
)  # fmt: skip
@option(
    "Run", "--ship-dir", metavar="DIR", show_default=SHIP_FOLDER,
    help="Folder for the files of --ship, on a local disk of each host.",
)  # fmt: skip
@option(
    "Run", "--fetch", metavar="PATH,...",
    help="With --ship code: copy what ranks wrote at these paths back to the current folder; '.': all.",
)  # fmt: skip
@container_options
@container_args_option
@option(
    "Run", "--run-dir", metavar="DIR", show_default="a new folder in ~/.local/state/ddlrun/runs",
    help="Folder for the rank file, the plan and the logs.",
)  # fmt: skip
@option(
    "Run", "--keep-runs", metavar="N|DAYSd|SIZE,...", default=KEPT, show_default=True,
    help="Remove the oldest ended runs (plans, logs) beyond a number, an age or a size; all: keep them.",
)  # fmt: skip
@option(
    "Run", "--on-event", metavar="COMMAND|URL",
    help="Run COMMAND at the start, stalls and the end of the run, with JSON as its input, or post this to URL.",
)  # fmt: skip
@option(
    "Run", "--web", type=PORT, metavar="PORT",
    help="Serve a web page of the run at this port of this computer until it ends; 0: at any free port.",
)  # fmt: skip
@option(
    "Run", "--dry-run", is_flag=True,
    help="Print the plan and the command, and start nothing; with --run-dir, write the files too.",
)  # fmt: skip
@option("Output", "--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@option("Output", "--verbose/--quiet", "verbose", default=None,
        help="Also print the command and all reasons; or only the job's output, and errors.")  # fmt: skip
@help_all_option
@argument("script")
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, translated: TranslatedArgv, script: str, args: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - click's own
) -> int:  # fmt: skip
    """Launch SCRIPT with ranks placed and bound.

    A .py file, or with -m a module, runs under ddlrun's Python; any other file is executed directly. Options come
    before SCRIPT; the words after SCRIPT are its arguments.

    By default, a host runs one rank per slot if slots are given, otherwise one per GPU, or one per package if it has no
    GPUs.
    """
    if options["as_json"] and not options["dry_run"]:
        raise InputError("--json shows a plan alone; add --dry-run")
    forget_outer_job()
    forget_variables(ctx)
    programs = read_programs(script, args, options)
    reporter = ctx.find_root().obj or ConsoleReporter()  # a launch from Python has its own
    settings = read_settings(launch_options(ctx, programs.options), programs.first, reporter)
    if options["verbose"] is not False:
        translated.print_notes()
        note_misplaced(script, split_programs(args)[0], ctx.command.params)
        note_excluded(ctx)
        note_secrets(options, "the command line, which all users of this computer can read")
    attempt = check_settings(settings, reporter)
    if settings.run.dry_run:
        from ddlrun.cli.dry_run import print_plan  # noqa: PLC0415 - 10 ms, not before agents start

        print_plan(attempt)
        return 0
    return run_until_done(attempt).exit_code
