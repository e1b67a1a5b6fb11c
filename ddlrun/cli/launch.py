"""ddlrun launch: place every rank, write the rank file, run mpirun.

The stages of a launch, each with the value that it returns:

    read_settings    Settings    what was asked for; here the options end
    check_settings   Attempt     mpirun is asked for its version meanwhile
    start_probe      Attempt     this machine is probed meanwhile
    survey_hosts     Surveyed    machines, network, software
    place_ranks      Placed      host, cores and GPU of every rank
    plan_job         Planned     rank file, environment, command
    write_files      Planned     the run folder
    ship_files       Planned     code, data and environment on the hosts, with --ship
    supervise_run    Finished    the outcome
    report_outcome   Finished    the reason of a failure, printed
    fetch_files      Finished    results of the ranks in the working folder, with --fetch

After a failure, next_attempt leads from Finished back to an Attempt.
"""

import json
import os
from typing import Any

import click

from ddlrun.cli.compatible_options import translate
from ddlrun.cli.configuration import forget_variables
from ddlrun.cli.dashboard import MOST_PORT, LaunchDashboard
from ddlrun.cli.job_options import job_options
from ddlrun.cli.launch_arguments import ARGUMENTS, strip_secrets
from ddlrun.cli.launch_help import ALL_OPTIONS, format_usual_help, help_all_option
from ddlrun.cli.option_notes import note_excluded, note_misplaced, note_on_descriptions, note_secrets
from ddlrun.cli.options import Sections, argument, check_build_option, check_options, option
from ddlrun.cli.value_types import COUNT, Number, WholeNumber
from ddlrun.environment.frameworks import NAMES
from ddlrun.errors import DdlrunError, InputError, PreflightError
from ddlrun.application.planning import (
    Attempt,
    Planned,
    check_settings,
    place_ranks,
    plan_job,
    start_probe,
    survey_hosts,
)
from ddlrun.application.programs import read_programs, split_programs
from ddlrun.application.read_container import container_args_option, container_options
from ddlrun.application.settings import read_settings
from ddlrun.plan import shown_command
from ddlrun.plan.settings import Settings
from ddlrun.supervise.signals import Signals

# Key of click's context: the command line in words of ddlrun.
TRANSLATED = "ddlrun.translated"
# Variables with the value 1 by which root allows any Open MPI to start.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Open MPI 4.1 sets it to "singleton" in MPI_Init outside mpirun; an mpirun that inherits it ends with 1.
SINGLETON = "OMPI_MCA_ess"


class Launch(Sections):
    """The launch command, which takes options of other launchers too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate options of other launchers, then parse."""
        translated = translate(args, self.get_params(ctx))
        ctx.meta[TRANSLATED] = translated
        ctx.meta[ARGUMENTS] = strip_secrets(translated.words, self.get_params(ctx))
        try:
            return super().parse_args(ctx, translated.words)
        except click.BadParameter as error:
            names = error.param.opts if error.param else []
            typed = ", ".join(translated.origins[name] for name in names if translated.origins.get(name, name) != name)
            if not typed:
                raise
            raise click.BadParameter(f"{error.message} (from {typed})", error.ctx, error.param) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help: the usual options on one screen, or with --help-all every option."""
        if ctx.meta.get(ALL_OPTIONS):
            super().format_help(ctx, formatter)
        else:
            format_usual_help(self, ctx, formatter)


@click.command(
    "launch", cls=Launch, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@job_options
@check_options
@check_build_option
@option("Run", "--attempts-file", hidden=True)  # ddlrun.launch() reads the folders of the attempts there
@option("Run", "--raises", is_flag=True, hidden=True)  # ddlrun.run() raises the traceback of a rank that failed
@option(
    "Restarts",
    "--restarts",
    metavar="N",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    help="Restart a failed job up to N times; DDLRUN_RESTART counts the restarts.",
)
@option(
    "Restarts",
    "--spare-hosts",
    metavar="LIST|extra",
    help="Hosts that replace failed hosts; extra: all hosts that --topology does not need.",
)
@option(
    "Restarts",
    "--min-topology",
    metavar="XxYxZ",
    help="Without spare hosts, restart with a smaller Y or Z, down to this topology.",
)
@option(
    "Run",
    "--ship",
    metavar="code,env,PATH,...",
    help="Copy files to the local disk of each host and run there: SCRIPT's code, its Python environment or that of a "
    "lock file (env=FILE), paths.",
)
@option(
    "Run",
    "--ship-dir",
    metavar="DIR",
    show_default="/tmp/ddlrun-ship-UID",  # noqa: S108 - see default_folder
    help="Folder for the files of --ship, on a local disk of each host.",
)
@option(
    "Run",
    "--fetch",
    metavar="PATH,...",
    help="With --ship code: copy what ranks wrote at these paths back to the current folder; '.': all.",
)
@container_options
@container_args_option
@option(
    "Run",
    "--run-dir",
    metavar="DIR",
    show_default="a new folder in ~/.local/state/ddlrun/runs",
    help="Folder for the rank file, the plan and the logs.",
)
@option(
    "Run",
    "--keep-runs",
    type=COUNT,
    metavar="N",
    help="Remove the folders of ended runs except for the latest N (see ddlrun runs).",
)
@option(
    "Run",
    "--keep-days",
    type=Number(min=0),
    metavar="DAYS",
    help="Remove the folders of ended runs that are older than DAYS.",
)
@option(
    "Run",
    "--on-event",
    metavar="COMMAND|URL",
    help="Start COMMAND at the start, a stall and the end of the run, with JSON as its input, or post it to URL.",
)
@option(
    "Run",
    "--dashboard",
    type=WholeNumber(0, MOST_PORT),
    metavar="PORT",
    help="Serve a web page of the run at this port of this computer until it ends; 0: at any free port.",
)
@option(
    "Run",
    "--dry-run",
    is_flag=True,
    help="Print the plan and the command, and start nothing; with --run-dir, write the files too.",
)
@option("Output", "--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@option("Output", "--verbose", is_flag=True, help="Also print all reasons and the command.")
@option("Output", "--quiet", is_flag=True, help="Print only the job's output, and errors.")
@help_all_option
@argument("script")
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Launch SCRIPT with ranks placed and bound.

    A .py file, or with -m a module, runs under this Python; any other file is executed directly. Options come before
    SCRIPT; the words after SCRIPT are its arguments.

    By default, a host runs one rank per slot if slots are given, otherwise one per GPU, or one per package if it has no
    GPUs.
    """
    if options["as_json"] and not options["dry_run"]:
        raise InputError("--json shows a plan alone; add --dry-run")
    _forget_outer_job()
    forget_variables(ctx)
    programs = read_programs(script, args, options)
    settings = read_settings(ctx, programs.options, programs.first)
    if not options["quiet"]:
        ctx.meta[TRANSLATED].print_notes()
        note_misplaced(script, split_programs(args)[0], ctx.command.params)
        note_excluded(ctx)
        note_secrets(options, "the command line, which all users of this computer can read")
    attempt = check_settings(settings)
    if settings.run.dry_run:
        with note_on_descriptions():
            _print_plan(_plan(attempt))
        return 0
    _check_root(settings)
    return _run_until_done(start_probe(attempt))


def _plan(attempt: Attempt) -> Planned:
    """Take an attempt through the stages up to its plan. Raises DdlrunError."""
    return plan_job(place_ranks(survey_hosts(attempt)))


def _print_plan(planned: Planned) -> None:
    """Print the plan of a dry run; write its files where --run-dir names their folder."""
    from ddlrun.report.plan import render_plan  # noqa: PLC0415 - a run imports it with all that prints
    from ddlrun.runs.store import check_rank_file, write_run_dir  # noqa: PLC0415

    plan, run = planned.plan, planned.attempt.settings.run
    if run.keep_dry_run:
        write_run_dir(plan)
    else:
        check_rank_file(plan)
    if run.as_json:
        click.echo(json.dumps(plan.as_dict(), indent=2))
    else:
        click.echo(render_plan(plan, shown_command(plan), full=True), nl=False)


def _run_until_done(attempt: Attempt) -> int:
    """Run the job, and restart it after a failure as often as allowed; return the last exit code."""
    from ddlrun.application import running  # noqa: PLC0415 - imported while this machine is probed

    finished, request = None, None
    with LaunchDashboard(attempt.settings.run.dashboard) as dashboard:
        while True:
            try:
                attempt = attempt if finished is None else running.next_attempt(finished, request)
                planned = running.prepare_run(survey_hosts(attempt), dashboard.show)
            except DdlrunError as error:
                if finished is None:
                    raise
                for problem in error.problems:
                    click.echo(f"ddlrun: no restart: {problem}", err=True)
                return finished.outcome.exit_code
            with Signals(attempt.settings.supervision.forward) as signals:
                finished = running.report_outcome(running.supervise_run(planned, signals), signals)
            request = signals.request
            finished = running.fetch_files(finished)
            finished = running.allow_port_restart(finished)
            if running.is_final(finished):
                return finished.outcome.exit_code


def _check_root(settings: Settings) -> None:
    """Raise PreflightError where root starts a job without having allowed it."""
    allowed = settings.mpi.allow_root or all(os.environ.get(name) == "1" for name in ROOT)
    if os.geteuid() == 0 and not allowed:
        raise PreflightError(
            "you are root, and a mistake in a job could then harm the whole machine; use another account, or give "
            "--allow-run-as-root (in a container, where root is usual, set OMPI_ALLOW_RUN_AS_ROOT=1 and "
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)"
        )


def _forget_outer_job() -> None:
    """Remove the variables of another job from the environment, where its rank or a program with MPI started ddlrun."""
    if "DDLRUN_RUN" in os.environ:
        names = {"DDL_OPTIONS", *NAMES}
        for name in [name for name in os.environ if name.startswith("DDLRUN_") or name in names]:
            del os.environ[name]
    if os.environ.get(SINGLETON) == "singleton":
        del os.environ[SINGLETON]
