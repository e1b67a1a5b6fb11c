"""ddlrun report: a run as an HTML page, and as a trace."""

import json
import os
import time

import click

from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.output_files import write_atomically
from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir
from ddlrun.report.html import render_page
from ddlrun.report.record import parse_record
from ddlrun.report.trace import chrome_trace
from ddlrun.runs.registry import Run, read_runs
from ddlrun.runs.store import read_run_dir, run_folders, state_folder


@click.command("report", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@argument("run", required=False)
@option("Output", "-o", "--output", metavar="FILE", show_default="report.html in the run folder",
        help="Write the page to FILE.")  # fmt: skip
@option("Output", "--trace", metavar="FILE", help="Also write the phases of each allreduce (Chrome trace).")
def command(run: str | None, output: str | None, trace: str | None) -> None:
    """Write RUN as one HTML page.

    The page shows the placement, the checks, the iterations, slow ranks and the failure. It needs no network and no
    server. Secrets are left out, as in the run folder.

    RUN is a run folder, or a run's id from ddlrun ps or the first characters of the id; default: the last run that was
    started here.
    """
    state = state_folder(os.environ)
    registered = read_runs(state)
    folder = _find(run, registered, run_folders(state))
    record = parse_record(folder, read_run_dir(folder))
    going = record.outcome is None and any(
        os.path.realpath(entry.run_dir) == os.path.realpath(folder) and entry.alive() is not False
        for entry in registered
    )
    path = output or RunDir(folder).page
    write_atomically(path, [render_page(record, going=going, now=time.time())])
    click.echo(path)
    if trace is not None:
        write_atomically(trace, [json.dumps(chrome_trace(record)), "\n"], "--trace")
        click.echo(trace)


def _find(run: str | None, registered: list[Run], folders: list[str]) -> str:
    """Return the folder of a run, given by its path or id. Raises InputError where there is none."""
    if run is None:
        return _last(registered, folders)
    if os.path.isdir(run) or "/" in run:
        return os.path.abspath(run)
    matches = [entry.run_dir for entry in registered if entry.run.startswith(run)] or [
        folder
        for folder in reversed(folders)
        if os.path.basename(folder).startswith(run) or _id(folder).startswith(run)
    ]
    if not matches:
        raise InputError(f"run {run!r}: no run of this id was started here; name its folder, or see ddlrun ps")
    return matches[0]


def _last(registered: list[Run], folders: list[str]) -> str:
    """Return the folder of the run that was started last."""
    latest = max(registered, key=lambda entry: entry.started, default=None)
    if latest is not None and (not folders or latest.started >= os.path.getmtime(RunDir(folders[-1]).plan)):
        return latest.run_dir
    if not folders:
        raise InputError("no run was started here; name the folder of one: ddlrun report FOLDER")
    return folders[-1]


def _id(folder: str) -> str:
    """Return the id of the run in a folder; empty where its plan cannot be read."""
    try:
        with open(RunDir(folder).plan, encoding="utf-8") as file:
            return str(json.load(file)["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
