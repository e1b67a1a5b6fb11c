"""ddlrun launch: place every rank, write the rank file, run mpirun."""

import json
import os
from collections.abc import Callable
from typing import Any

import click

from ddlrun.cli.inputs import read_machines
from ddlrun.cli.job import job_options, read_program, read_settings
from ddlrun.cli.options import Sections, check_options, option
from ddlrun.errors import InputError
from ddlrun.launch import Settings, check, make_plan, run, shown_command, write_run_dir
from ddlrun.machine import Machine
from ddlrun.mpirun import Mpirun
from ddlrun.network import Network
from ddlrun.probe import is_local
from ddlrun.report.plan import render_plan


@click.command(
    "launch", cls=Sections, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@job_options
@check_options
@option("Run", "--run-dir", metavar="DIR", help="Folder for rank file, plan and logs; default: ~/.local/state/ddlrun.")
@option("Run", "--dry-run", is_flag=True, help="Print the plan and the command; start nothing.")
@option("Run", "--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@option("Run", "--verbose", is_flag=True, help="Print the reasons and the command too.")
@option("Run", "--quiet", is_flag=True, help="Print nothing but what the job prints, and errors.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Launch SCRIPT on every accelerator of the hosts, each rank where it belongs.

    A .py file runs under this Python; -m takes a module; anything else is a program. Options come
    before SCRIPT; what follows it is the script's own.
    """
    if options["as_json"] and not options["dry_run"]:
        raise InputError("--json goes with --dry-run")
    settings = read_settings(ctx, options, read_program(script, args, is_module=options["is_module"]))
    mpirun = check(settings, os.environ)
    machines, network = _ask(settings, mpirun, options)
    plan = make_plan(settings, mpirun(), machines, os.environ, network)
    shown = render_plan(plan, shown_command(plan), full=options["dry_run"] or options["verbose"])
    if options["dry_run"]:
        if options["run_dir"]:
            write_run_dir(plan)
        click.echo(json.dumps(plan.as_dict(), indent=2) if options["as_json"] else shown, nl=options["as_json"])
        return 0
    write_run_dir(plan)
    if not options["quiet"]:
        click.echo(shown, nl=False, err=True)
    outcome = run(plan, os.environ)
    if outcome.exit_code and not options["quiet"]:
        seconds = f"{outcome.seconds:.1f} s" + (f": {outcome.reason}" if outcome.reason else "")
        click.echo(f"ddlrun: exit code {outcome.exit_code} after {seconds}; logs: {plan.run_dir.path}", err=True)
    return outcome.exit_code


def _ask(
    settings: Settings, mpirun: Callable[[], Mpirun], options: dict[str, Any]
) -> tuple[dict[str, Machine], Network | None]:
    """Return each host's machine, and what the hosts talk over; where hosts are asked over ssh they are checked too."""
    described = options["machine"] or options["load"]
    alone = all(is_local(name, os.uname().nodename) for name in settings.hosts.names)
    if alone or (described and options["dry_run"]):
        return read_machines(settings.hosts, options["machine"], options["load"], settings.ssh), None
    from ddlrun.cli.check import check_first  # noqa: PLC0415 - a job on this machine needs no network

    report = check_first(settings, mpirun(), options)
    if described:
        return read_machines(settings.hosts, options["machine"], options["load"], settings.ssh), report.network
    return report.machines(), report.network
