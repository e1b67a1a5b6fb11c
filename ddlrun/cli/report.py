"""ddlrun report: a run as an HTML page, and as a trace."""

import json
import os

import click

from ddlrun.application.output_files import write_atomically
from ddlrun.cli.options import Sections, argument, option
from ddlrun.page.html import render_file
from ddlrun.page.record import read_record
from ddlrun.page.trace import chrome_trace
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import find_run_folder
from ddlrun.runs.store import state_folder


@click.command("report", cls=Sections)
@argument("run", required=False)
@option("Output", "-o", "--output", metavar="FILE", show_default="report.html in the run folder",
        help="Write the page to FILE.")  # fmt: skip
@option("Output", "--trace", metavar="FILE", help="Also write the phases of each allreduce (Chrome trace).")
def command(run: str | None, output: str | None, trace: str | None) -> None:
    """Write RUN as one HTML page.

    The page is that of the run's samples, with the failure, the placement, the logs and the reports of ddlrun.ddl. It
    needs no network and no server. Secrets are left out, as in the run folder.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.
    """
    folder = find_run_folder(run, state_folder(os.environ))
    path = output or RunDir(folder).page
    write_atomically(path, [render_file(folder)], private=output is None)
    if path != "-":
        click.echo(path)
    if trace is not None:
        write_atomically(trace, [json.dumps(chrome_trace(read_record(folder))), "\n"], "--trace")
        click.echo(trace, err=path == "-")
