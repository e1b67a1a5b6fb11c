"""ddlrun dashboard: the web page of a run."""

import os

import click

from ddlrun.application.dashboard import open_dashboard
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.types import PORT
from ddlrun.runs.history import find_run_folder, run_name
from ddlrun.runs.store import state_folder


@click.command("dashboard", cls=Sections)
@argument("run", required=False)
@option(
    "Output", "--port", type=PORT, default=0, metavar="PORT",
    help="Port of the page; default: any free port.",
)  # fmt: skip
def command(run: str | None, port: int) -> None:
    """Serve a web page with what the ranks of RUN use, and what limits them.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The page shows a running job as it goes on, and an ended one as it was. Only browsers on this computer reach it,
    with the printed address, which has a password. Ctrl-C ends ddlrun dashboard.
    """
    folder = find_run_folder(run, state_folder(os.environ))
    server = open_dashboard(port, folder, "--port")
    click.echo(f"page of {run_name(folder)}: {server.url}", err=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
