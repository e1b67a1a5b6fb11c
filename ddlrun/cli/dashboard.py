"""ddlrun dashboard: the web page of a run."""

from typing import TYPE_CHECKING

import click

from ddlrun.cli.named_run import find_run_folder, run_name
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.value_types import WholeNumber
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from ddlrun.dashboard.server import DashboardServer

MOST_PORT = 65535


@click.command("dashboard", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@argument("run", required=False)
@option(
    "Output", "--port", type=WholeNumber(0, MOST_PORT), default=0, metavar="PORT",
    help="Port of the page; default: any free port.",
)  # fmt: skip
def command(run: str | None, port: int) -> None:
    """Serve a web page with what the ranks of RUN use, and what limits them.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The page shows a running job as it goes on, and an ended one as it was. Only browsers on this computer reach it,
    with the printed address, which has a password. Ctrl-C ends ddlrun dashboard.
    """
    folder = find_run_folder(run)
    server = open_dashboard(port, folder, "--port")
    click.echo(f"page of {run_name(folder)}: {server.url}", err=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class LaunchDashboard:
    """The page of a launch: that of its current attempt."""

    def __init__(self, port: int | None) -> None:
        """Take the port; 0: any that is free, None: there is no page."""
        self._port = port
        self._server: DashboardServer | None = None

    def __enter__(self) -> "LaunchDashboard":  # noqa: PYI034 - typing.Self came with 3.11
        """Begin without a page."""
        return self

    def __exit__(self, *_: object) -> None:
        """Send the end of the run to the open pages."""
        if self._server is not None:
            self._server.stop()

    def show(self, folder: str) -> None:
        """Show an attempt. Raises InputError where the port cannot be used."""
        if self._port is None:
            return
        if self._server is None:
            self._server = open_dashboard(self._port, folder, "--dashboard")
            self._server.start()
            click.echo(f"page: {self._server.url}", err=True)
        self._server.folder = folder


def open_dashboard(port: int, folder: str, name: str) -> "DashboardServer":
    """Return a server of the page of a run, which has not been started. Raises InputError.

    Args:
        port: The port; 0: any that is free.
        folder: The run folder.
        name: The option that has named the port.
    """
    from ddlrun.dashboard.server import DashboardServer  # noqa: PLC0415 - 30 ms, for pages alone

    try:
        return DashboardServer(port, folder)
    except OSError as error:
        raise InputError(f"{name} {port}: {error.strerror}; choose another port") from error
