"""ddlrun show: one stage of a launch as text or JSON; nothing is started."""

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from ddlrun.application.attempt import check_settings
from ddlrun.application.inputs import read_text
from ddlrun.application.options.programs import Programs, read_programs, split_programs
from ddlrun.application.options.settings import read_settings
from ddlrun.application.output_files import write_atomically
from ddlrun.application.planning import (
    Surveyed,
    place_ranks,
    plan_job,
    read_machine_source,
    survey_machines,
)
from ddlrun.cli.canvas import terminal_canvas
from ddlrun.cli.console import ConsoleReporter, print_note
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.arguments import launch_options
from ddlrun.cli.options.configuration import forget_variables
from ddlrun.cli.options.job import job_options
from ddlrun.cli.options.notes import note_excluded, note_misplaced
from ddlrun.cli.options.translation import translate
from ddlrun.cli.result import print_result
from ddlrun.errors import DdlrunError, InputError
from ddlrun.managers import ProcessManager
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.slot_notation import BOTH_MAJORS
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan.job_placement import place_job
from ddlrun.plan.plan import Plan
from ddlrun.plan.settings import Settings
from ddlrun.remote.probe import check_distinct
from ddlrun.report.svg import render_svg
from ddlrun.report.views import (
    View,
    show_command,
    show_hosts,
    show_placement,
    show_rankfile,
    show_topology,
    show_variables,
)
from ddlrun.wording import did_you_mean

VIEWS = ("placement", "rankfile", "command", "env", "hosts", "topology", "schema")
# Words that people may type -> the command for them.
ELSEWHERE = {"machines": "ddlrun probe", "machine": "ddlrun probe", "options": "ddlrun config show"}
SCHEMAS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "schemas")
# The options that launch does not have, and --json, which it has for a dry run.
OWN_OPTIONS = ("as_json", "svg")


class Show(Sections):
    """A command whose first word, WHAT, comes before the options; options end at the script, as for launch."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; for the completion of the first word, WHAT alone."""
        if ctx.resilient_parsing and "view" not in ctx.params:
            return [click.Argument(["what"], type=click.Choice(VIEWS))]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove WHAT from the arguments."""
        if args and args[0] in VIEWS:
            ctx.params["view"] = args[0]
            translated = translate(args[1:], self.get_params(ctx))
            translated.print_notes()
            return super().parse_args(ctx, translated.words)
        if not {"-h", "--help"} & set(args[:1]) and (args or not ctx.resilient_parsing):
            if not args:
                raise click.UsageError(f"name one of {', '.join(VIEWS)}", ctx)
            hint = did_you_mean(args[0], VIEWS, ELSEWHERE)
            raise click.UsageError(f"{args[0]!r} is none of {', '.join(VIEWS)}{hint}", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line, with WHAT first."""
        return ["WHAT", *super().collect_usage_pieces(ctx)]

    def own_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return show's own options and --help; those of a job are in launch's help."""
        return [param for param in super().own_params(ctx) if param.name in OWN_OPTIONS or param not in self.params]


@click.command("show", cls=Show, context_settings={"allow_interspersed_args": False})
@job_options
@option("Output", "--json", "as_json", is_flag=True, help="Print JSON.")
@option("Output", "--svg", metavar="FILE", help="With placement: also draw the placement in FILE.")
@argument("script", required=False)
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, view: str, script: str | None, args: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's own
    """Print what a launch would do, and start nothing.

    \b
    placement  packages, cores, GPUs and NICs, with the ranks on them
    rankfile   the rank file
    command    the command that launch runs
    env        the variables that each rank finds; --ranks chooses ranks
    hosts      the hosts with their ranks and racks, and the source of the list
    topology   XxYxZ, and the reason for it
    schema     a JSON Schema of an output or a file: ddlrun show schema [NAME]

    The options of ddlrun launch for hosts, topology, frameworks, MPI, environment, placement and Horovod are accepted
    (ddlrun launch --help-all).
    With --machine, no host need be reachable.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with \b
    if options["svg"] and view != "placement":
        raise InputError(f"--svg draws a placement: ddlrun show placement --svg {options['svg']}")
    if view == "schema":
        _show_schema(script, args, as_json=options["as_json"])
        return
    if script:
        note_misplaced(script, split_programs(args)[0], ctx.command.params)
    note_excluded(ctx)
    programs = read_programs(script, args, options) if script else Programs(("SCRIPT",), options)
    forget_variables(ctx)
    settings = read_settings(launch_options(ctx, programs.options), programs.first, ConsoleReporter())
    check_distinct(settings.hosts.hosts)
    shown = _show(view, settings, options["svg"])
    print_result(shown.record, shown.text.rstrip("\n") + "\n", as_json=options["as_json"])


def _show(view: str, settings: Settings, svg: str | None) -> View:
    """Return a view; print the notes of its stages, and draw the placement into a file."""
    if view == "command":
        return show_command(_plan(settings))
    if view == "env":
        return show_variables(_plan(settings), os.environ, settings.supervision.style.ranks)
    machines = read_machine_source(settings)
    job = place_job(settings, machines, _manager(settings) if settings.job.profiles.candidates else None)
    placement = job.placement
    for note in (*settings.hosts.notes, *filter(None, [settings.job.profiles.note]), *placement_notes(placement)):
        print_note(note)
    if svg:
        write_atomically(svg, [render_svg(placement)], "--svg")
    return _show_placed(view, placement, job.reason, settings)


def _show_placed(view: str, placement: Placement, reason: TopologyReason, settings: Settings) -> View:
    if view == "topology":
        return show_topology(placement, reason, settings)
    if view == "placement":
        return show_placement(placement, reason, terminal_canvas())
    if view == "hosts":
        return show_hosts(placement, settings)
    manager = _manager(settings)
    dialect = None if manager is None else manager.rankfile_dialect
    return show_rankfile(placement, BOTH_MAJORS if dialect is None else (dialect,))


def _plan(settings: Settings) -> Plan:
    """Return the plan of a launch whose hosts are not checked; print its warnings."""
    attempt = check_settings(settings, ConsoleReporter())
    surveyed = Surveyed(attempt, survey_machines(settings, attempt.manager), None)
    plan = plan_job(place_ranks(surveyed)).plan
    for note in plan.warnings:
        print_note(note)
    return plan


def _manager(settings: Settings) -> ProcessManager | None:
    """Return the process manager that launch would use; None where it would stop."""
    try:
        return check_settings(settings, ConsoleReporter()).manager.result()
    except DdlrunError:
        return None


def _show_schema(name: str | None, more: Sequence[str], *, as_json: bool) -> None:
    """Print a schema, or the list of all. Raises InputError where there is none of that name."""
    if more:
        raise InputError(f"show schema {name} {' '.join(more)}: name one schema")
    if name is not None:
        click.echo(_read_schema(name), nl=False)
        return
    titles = {name: str(json.loads(_read_schema(name))["title"]) for name in _schema_names()}
    width = max(map(len, titles))
    text = "".join(f"{name.ljust(width)}  {title}\n" for name, title in titles.items())
    print_result({"schemas": titles}, text, as_json=as_json)


def _read_schema(name: str) -> str:
    names = _schema_names()
    if name not in names:
        raise InputError(f"schema {name!r}: no such schema{did_you_mean(name, names)}; there are {', '.join(names)}")
    return read_text(f"{SCHEMAS}/{name}.json", "schema")


def _schema_names() -> list[str]:
    return sorted(file.removesuffix(".json") for file in os.listdir(SCHEMAS) if file.endswith(".json"))
