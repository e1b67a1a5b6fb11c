"""ddlrun report: a run as an HTML page, and as a trace."""

import json
import os
import time

import click

from ddlrun.application.output_files import write_atomically
from ddlrun.cli.options import Sections, argument, option
from ddlrun.plan.run_dir import RunDir
from ddlrun.report.html import render_page
from ddlrun.report.record import parse_record
from ddlrun.report.trace import chrome_trace
from ddlrun.runs.history import find_run
from ddlrun.runs.registry import read_runs
from ddlrun.runs.store import read_run_dir, state_folder


@click.command("report", cls=Sections)
@argument("run", required=False)
@option("Output", "-o", "--output", metavar="FILE", show_default="report.html in the run folder",
        help="Write the page to FILE.")  # fmt: skip
@option("Output", "--trace", metavar="FILE", help="Also write the phases of each allreduce (Chrome trace).")
def command(run: str | None, output: str | None, trace: str | None) -> None:
    """Write RUN as one HTML page.

    The page shows the placement, the checks, the iterations, slow ranks and the failure. It needs no network and no
    server. Secrets are left out, as in the run folder.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.
    """
    state = state_folder(os.environ)
    folder = find_run(run, state)
    record = parse_record(folder, read_run_dir(folder))
    going = record.outcome is None and any(
        os.path.realpath(entry.run_dir) == os.path.realpath(folder) and entry.alive() is not False
        for entry in read_runs(state)
    )
    path = output or RunDir(folder).page
    write_atomically(path, [render_page(record, going=going, now=time.time())], private=output is None)
    if path != "-":
        click.echo(path)
    if trace is not None:
        write_atomically(trace, [json.dumps(chrome_trace(record)), "\n"], "--trace")
        click.echo(trace, err=path == "-")
