"""ddlrun show: one stage of a launch as text or JSON; nothing is started."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ddlrun.application.output_files import write_atomically
from ddlrun.application.planning import (
    Surveyed,
    check_settings,
    place_ranks,
    plan_job,
    read_machine_source,
    survey_machines,
)
from ddlrun.application.programs import Programs, read_programs, split_programs
from ddlrun.application.settings import read_settings
from ddlrun.cli.configuration import forget_variables
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.job_options import job_options
from ddlrun.cli.launch_arguments import launch_options
from ddlrun.cli.option_notes import note_excluded, note_misplaced
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.show_env import show_variables
from ddlrun.cli.show_schema import show_schema
from ddlrun.cli.translation import translate
from ddlrun.errors import DdlrunError, InputError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.machine import Machine
from ddlrun.managers import ProcessManager
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.rack_layout import by_rack, shape_reason
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.slot_notation import BOTH_MAJORS
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan import Plan, machine_group_dict, placement_dict, shown_command
from ddlrun.plan.job_placement import place_job
from ddlrun.plan.settings import Settings
from ddlrun.remote.probe import check_distinct, group
from ddlrun.report.picture import ASCII, BoxStyle, render_machine, render_placement
from ddlrun.report.svg import render_svg
from ddlrun.topology import JobTopology, Topology, describe
from ddlrun.wording import counted, did_you_mean

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.plan.records import MachineGroupRecord, ShownPlacement
    from ddlrun.report.view_records import (
        CommandRecord,
        HostRanksRecord,
        HostsRecord,
        RankfileRecord,
        TopologyRecord,
    )

# A view as text and as JSON can carry it.
View = tuple[str, object]

VIEWS = ("placement", "rankfile", "machines", "command", "env", "hosts", "topology", "schema")
# The options that launch does not have, and --json, which it has for a dry run.
OWN_OPTIONS = ("as_json", "svg")
# The key of the view in click's context.
VIEW_KEY = "ddlrun.view"


class Show(Sections):
    """A command whose first word, WHAT, comes before the options; options end at the script, as for launch."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; for the completion of the first word, WHAT alone."""
        if ctx.resilient_parsing and VIEW_KEY not in ctx.meta:
            return [click.Argument(["what"], type=click.Choice(VIEWS))]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove WHAT from the arguments."""
        if args and args[0] in VIEWS:
            ctx.meta[VIEW_KEY] = args[0]
            translated = translate(args[1:], self.get_params(ctx))
            translated.print_notes()
            return super().parse_args(ctx, translated.words)
        if not {"-h", "--help"} & set(args[:1]) and (args or not ctx.resilient_parsing):
            if not args:
                raise click.UsageError(f"name one of {', '.join(VIEWS)}", ctx)
            hint = did_you_mean(args[0], VIEWS)
            raise click.UsageError(f"{args[0]!r} is none of {', '.join(VIEWS)}{hint}", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line, with WHAT first."""
        return ["WHAT", *super().collect_usage_pieces(ctx)]

    def own_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return show's own options and --help; those of a job are in launch's help."""
        return [param for param in super().own_params(ctx) if param.name in OWN_OPTIONS or param not in self.params]


@click.command(
    "show", cls=Show, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@job_options
@option("Output", "--json", "as_json", is_flag=True, help="Print JSON.")
@option("Output", "--svg", metavar="FILE", help="With placement: also draw the placement in FILE.")
@argument("script", required=False)
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str | None, args: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's own
    """Show part of a launch, and start nothing.

    \b
    placement  packages, cores, GPUs and NICs, with the ranks on them
    rankfile   the rank file
    machines   the hardware of the hosts
    command    the command that launch runs
    env        the variables that each rank finds; --ranks chooses ranks
    hosts      the hosts with their ranks and racks, and the source of the list
    topology   XxYxZ, and the reason for it
    schema     a JSON Schema of an output or a file: ddlrun show schema [NAME]

    The options of ddlrun launch for hosts, topology, frameworks, MPI, environment, placement and Horovod are accepted
    (ddlrun launch --help-all).
    With --machine or --load, no host need be reachable.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with \b
    view = str(ctx.meta[VIEW_KEY])
    if options["svg"] and view != "placement":
        raise InputError(f"--svg draws a placement: ddlrun show placement --svg {options['svg']}")
    if view == "schema":
        show_schema(script, args, as_json=options["as_json"])
        return
    if script:
        note_misplaced(script, split_programs(args)[0], ctx.command.params)
    note_excluded(ctx)
    programs = read_programs(script, args, options) if script else Programs(("SCRIPT",), options)
    forget_variables(ctx)
    settings = read_settings(launch_options(ctx, programs.options), programs.first, ConsoleReporter())
    check_distinct(settings.hosts.hosts, os.uname().nodename)
    if view == "machines":
        text, value = _machines(settings.hosts.hosts, read_machine_source(settings))
    elif view == "command":
        text, value = _command(_plan(settings))
    elif view == "env":
        text, value = show_variables(_plan(settings), settings.supervision.style.ranks)
    else:
        text, value = _placed(view, settings, options["svg"])
    click.echo(json.dumps(value, indent=2) if options["as_json"] else text.rstrip("\n"))


def _plan(settings: Settings) -> Plan:
    """Return the plan of a launch whose hosts are not checked; print its warnings."""
    attempt = check_settings(settings, ConsoleReporter())
    surveyed = Surveyed(attempt, survey_machines(settings, attempt.manager), None)
    plan = plan_job(place_ranks(surveyed)).plan
    for note in plan.warnings:
        click.echo(f"ddlrun: note: {note}", err=True)
    return plan


def _placed(view: str, settings: Settings, svg: str | None) -> View:
    """Return a view of the placement; print its notes, and draw it into a file."""
    machines = read_machine_source(settings)
    manager = _manager(settings) if settings.job.profiles.candidates else None
    placement, reason, _ = place_job(settings, machines, manager)
    for note in (*settings.hosts.notes, *filter(None, [settings.job.profiles.note]), *placement_notes(placement)):
        click.echo(f"ddlrun: note: {note}", err=True)
    if svg:
        write_atomically(svg, [render_svg(placement)], "--svg")
    if view == "topology":
        return _topology(placement, reason, settings)
    if view == "placement":
        record: ShownPlacement = {"schema": "urn:ddlrun:show-placement:1", **placement_dict(placement)}
        return f"{placement.topology}: {reason}\n{_picture(placement)}", record
    return _rankfile(placement, _manager(settings)) if view == "rankfile" else _hosts(placement, settings)


def _manager(settings: Settings) -> ProcessManager | None:
    """Return the process manager that launch would use; None where it would stop."""
    try:
        return check_settings(settings, ConsoleReporter()).manager.result()
    except DdlrunError:
        return None


def _picture(placement: Placement) -> str:
    return render_placement(placement, _width(), _box_style())


def _rankfile(placement: Placement, manager: ProcessManager | None) -> View:
    dialect = None if manager is None else manager.rankfile_dialect
    majors = BOTH_MAJORS if dialect is None else (dialect,)
    text = "".join(render(placement, f"by ddlrun: {placement.topology}", majors))
    record: RankfileRecord = {"schema": "urn:ddlrun:show-rankfile:1", "rankfile": text}
    return text, record


def _topology(placement: Placement, reason: TopologyReason, settings: Settings) -> View:
    topology, hosts = placement.topology, placement.hosts
    dims = topology.dims if isinstance(topology, Topology) else ()
    groups = _groups_of_hosts(topology, hosts)
    racks = [" + ".join(dict.fromkeys(host.rack or "?" for host in group)) for group in groups]
    has_racks = any(host.rack for host in hosts)
    lines = [f"{topology}: {counted(topology.size, 'rank')}, unequal hosts\n", f"ranks per host: {reason}\n"]
    if dims:
        hosts_reason = reason.hosts or _shape_reason(settings)
        lines = [f"{topology}: {describe(dims)}\n", f"X: {reason.accelerators}\n", f"Y, Z: {hosts_reason}\n"]
    for number, (members, rack) in enumerate(zip(groups, racks, strict=True)):
        name = rack if has_racks else f"rack {number}"
        lines.append(f"{name}: {fold(host.name for host in members)}\n")
    record: TopologyRecord = {
        "schema": "urn:ddlrun:show-topology:1",
        "topology": str(topology),
        "dims": list(dims),
        "ranks_per_host": [topology.local_size(index) for index in range(topology.hosts)],
        "reason": str(reason),
        "racks": [
            {"rack": rack if has_racks else None, "hosts": [host.name for host in group]}
            for group, rack in zip(groups, racks, strict=True)
        ],
        "source": hosts.source,
        "notes": list(settings.hosts.notes),
    }
    return "".join(lines), record


def _groups_of_hosts(topology: JobTopology, hosts: HostList) -> list[tuple[Host, ...]]:
    """Return the groups of Y hosts; unequal hosts by rack."""
    if isinstance(topology, Topology):
        size = topology.dims[1]
        return [hosts.hosts[at : at + size] for at in range(0, len(hosts), size)]
    return [tuple(rack) for rack in by_rack(hosts).values()] or [hosts.hosts]


def _shape_reason(settings: Settings) -> str:
    if settings.job.topology.topology is not None:
        return "--topology"
    return settings.job.shape_options or shape_reason(settings.hosts.hosts)


def _hosts(placement: Placement, settings: Settings) -> View:
    rows: list[str] = []
    values: list[HostRanksRecord] = []
    for index, host in enumerate(placement.hosts):
        coords = placement.topology.host_coords(index)
        ranks = list(placement.topology.ranks_of(index, placement.order))
        rack = host.rack or ".".join(map(str, coords[1:]))
        rows.append(f"{host.name}  rack {rack}  host {coords[0]}  ranks {','.join(map(str, ranks))}\n")
        values.append({"name": host.name, "slots": host.slots, "rack": rack, "coords": list(coords), "ranks": ranks})
    source, launcher = placement.hosts.source, settings.hosts.launcher.reason
    record: HostsRecord = {
        "schema": "urn:ddlrun:show-hosts:1",
        "source": source,
        "launcher": launcher,
        "notes": list(settings.hosts.notes),
        "hosts": values,
    }
    return f"{''.join(rows)}hosts from {source}\ndaemons started by {launcher}\n", record


def _machines(hosts: HostList, machines: Mapping[str, Machine]) -> View:
    text = ""
    values: list[MachineGroupRecord] = []
    for machine, names in group({name: machines[name] for name in hosts.names}):
        notes = "".join(f"  note: {note}\n" for note in machine.notes)
        text += f"{fold(names)}: {machine} ({machine.source})\n{render_machine(machine, _width(), _box_style())}{notes}"
        values.append(machine_group_dict(names, machine))
    return text, values


def _command(plan: Plan) -> View:
    record: CommandRecord = {
        "schema": "urn:ddlrun:show-command:1",
        "argv": list(plan.printed_argv),
        "variables": plan.printed_variables,
    }
    return shown_command(plan), record


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _box_style() -> BoxStyle:
    return BoxStyle() if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
