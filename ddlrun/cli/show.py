"""ddlrun show: what a launch would do, joint by joint; nothing is started."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from ddlrun.cli.compatible_options import translate
from ddlrun.cli.inputs import read_machines
from ddlrun.cli.job_options import job_options, read_program, read_settings
from ddlrun.cli.options import Sections, option
from ddlrun.cli.output_files import write_atomically
from ddlrun.environment.exports import redacted
from ddlrun.environment.frameworks import OWN
from ddlrun.errors import DdlrunError, InputError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.rack_layout import shape_reason
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan import Plan, machine_dict, placement_dict, shown_command
from ddlrun.plan.planner import check, make_plan, place_job
from ddlrun.plan.settings import Settings
from ddlrun.remote.probe import check_distinct, group
from ddlrun.topology import describe

Shown = tuple[str, object]


WHATS = ("placement", "rankfile", "machines", "command", "env", "hosts", "topology")


class Show(Sections):
    """Takes its first word, WHAT, before the options; options then end at the script, as for launch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take WHAT off."""
        if args and args[0] in WHATS:
            ctx.meta["ddlrun.what"] = args[0]
            return super().parse_args(ctx, translate(args[1:], self.get_params(ctx)))
        if not {"-h", "--help"} & set(args[:1]):
            said = f"{args[0]!r} is none of" if args else "say what:"
            raise click.UsageError(f"{said} {', '.join(WHATS)}", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Name WHAT first."""
        return ["|".join(WHATS), *super().collect_usage_pieces(ctx)]


@click.command(
    "show", cls=Show, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@job_options
@option("Show", "--json", "as_json", is_flag=True, help="Print JSON.")
@option("Show", "--svg", metavar="FILE", help="With placement: draw it into FILE.")
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str | None, args: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's own
    """Show WHAT a launch with these options would do; start nothing.

    placement: a picture of packages, cores, GPUs, NICs and who sits where. rankfile: as mpirun reads it.
    machines: what the hosts are made of. command, env: what launch runs, and the ranks' variables. hosts:
    the hosts with their ranks and racks, and where they were found. topology: XxYxZ, and why. With
    --machine or --load, for any cluster, from anywhere.
    """
    what = str(ctx.meta["ddlrun.what"])
    if options["svg"] and what != "placement":
        raise InputError(f"--svg draws a placement; say: ddlrun show placement --svg {options['svg']}")
    program = read_program(script, args, is_module=options["is_module"]) if script else ("SCRIPT",)
    settings = read_settings(ctx, options, program)
    check_distinct(settings.hosts, os.uname().nodename)
    waiting = check(settings, os.environ) if what in ("command", "env") else None
    machines = read_machines(settings.hosts, options["machine"], options["load"], settings.way)
    if what == "machines":
        text, value = _machines(settings.hosts, machines)
    elif waiting is not None:
        plan = make_plan(settings, waiting(), machines, os.environ)
        for note in plan.warnings:
            click.echo(f"ddlrun: note: {note}", err=True)
        text, value = _OF_PLAN[what](plan)
    else:
        text, value = _placed(what, settings, machines, options["svg"])
    click.echo(json.dumps(value, indent=2) if options["as_json"] else text.rstrip("\n"))


def _placed(what: str, settings: Settings, machines: Mapping[str, Machine], svg: str | None) -> Shown:
    placement, reason, _ = place_job(settings, machines, _major(settings) if settings.profiles.known else None)
    for note in (*settings.notes, *filter(None, [settings.profiles.said]), *placement_notes(placement)):
        click.echo(f"ddlrun: note: {note}", err=True)
    if svg:
        from ddlrun.report.svg import render_svg  # noqa: PLC0415 - for --svg alone

        write_atomically(svg, [render_svg(placement)], "--svg")
    if what == "topology":
        return _topology(placement, reason, settings)
    if what == "placement":
        return f"{placement.topology}: {reason}\n{_picture(placement)}", placement_dict(placement)
    return _rankfile(placement) if what == "rankfile" else _hosts(placement, settings)


def _major(settings: Settings) -> int | None:
    """Return the Open MPI that launch would take, which a profile is for; None where there is none here."""
    try:
        return check(settings, os.environ)().major
    except DdlrunError:
        return None


def _picture(placement: Placement) -> str:
    from ddlrun.report.picture import render_placement  # noqa: PLC0415 - for pictures alone

    return render_placement(placement, _width(), _look())


def _rankfile(placement: Placement) -> Shown:
    text = "".join(render(placement, f"by ddlrun: {placement.topology}"))
    return text, {"rankfile": text}


def _topology(placement: Placement, reason: TopologyReason, settings: Settings) -> Shown:
    topology, hosts = placement.topology, placement.hosts
    size = topology.dims[1]
    groups = [hosts.hosts[at : at + size] for at in range(0, len(hosts), size)]
    racks = [" + ".join(dict.fromkeys(host.rack or "?" for host in group)) for group in groups]
    known = any(host.rack for host in hosts)
    hosts_reason = reason.hosts or _shape_reason(settings)
    lines = [f"{topology}: {describe(topology.dims)}\n", f"X: {reason.accelerators}\n", f"Y, Z: {hosts_reason}\n"]
    for number, (members, rack) in enumerate(zip(groups, racks, strict=True)):
        lines.append(f"{rack if known else number}: {fold(host.name for host in members)}\n")
    values = [{"rack": rack if known else None, "hosts": [host.name for host in group]}
              for group, rack in zip(groups, racks, strict=True)]  # fmt: skip
    said = {"topology": str(topology), "dims": list(topology.dims), "reason": str(reason), "racks": values}
    return "".join(lines), {**said, "source": hosts.source, "notes": list(settings.notes)}


def _shape_reason(settings: Settings) -> str:
    if settings.wish.topology is not None:
        return "--topology"
    return settings.asked_shape or shape_reason(settings.hosts)


def _hosts(placement: Placement, settings: Settings) -> Shown:
    rows, values = [], []
    for index, host in enumerate(placement.hosts):
        coords = placement.topology.host_coords(index)
        x = placement.topology.accelerators
        ranks = [placement.topology.rank(index, local, placement.order) for local in range(x)]
        rack = host.rack or ".".join(map(str, coords[1:]))
        rows.append(f"{host.name}  rack {rack}  host {coords[0]}  ranks {','.join(map(str, ranks))}\n")
        values.append({"name": host.name, "slots": host.slots, "rack": rack, "coords": list(coords), "ranks": ranks})
    said = {"source": placement.hosts.source, "launcher": settings.way.reason, "notes": list(settings.notes)}
    return f"{''.join(rows)}from {placement.hosts.source}\nby {settings.way.reason}\n", {**said, "hosts": values}


def _machines(hosts: HostList, machines: Mapping[str, Machine]) -> Shown:
    from ddlrun.report.picture import render_machine  # noqa: PLC0415 - for pictures alone

    text, values = "", []
    for machine, names in group({name: machines[name] for name in hosts.names}):
        notes = "".join(f"  note: {note}\n" for note in machine.notes)
        text += f"{fold(names)}: {machine} ({machine.source})\n{render_machine(machine, _width(), _look())}{notes}"
        values.append({"hosts": list(names), **machine_dict(machine)})
    return text, values


def _command(plan: Plan) -> Shown:
    return shown_command(plan), {"argv": list(plan.argv), "variables": redacted(dict(plan.variables))}


def _env(plan: Plan) -> Shown:
    variables = redacted(dict(plan.variables))
    passed = sorted(set(plan.exports) - set(variables))
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    own = [word.partition("=")[0] for word in variables.get(OWN, "").split()]
    text += f"set by each rank: {' '.join(own)}\n" if own else ""
    removed = f"removed: {' '.join(plan.removed)}\n" if plan.removed else ""
    return f"{text}passed on: {' '.join(passed)}\n{removed}", {
        "set": variables, "set_by_rank": own, "passed_on": passed, "removed": list(plan.removed),
    }  # fmt: skip


_OF_PLAN: dict[str, Callable[[Plan], Shown]] = {"command": _command, "env": _env}


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _look() -> Any:  # noqa: ANN401 - report.picture is imported for pictures alone
    from ddlrun.report.picture import ASCII, BoxStyle  # noqa: PLC0415 - for pictures alone

    return BoxStyle() if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
