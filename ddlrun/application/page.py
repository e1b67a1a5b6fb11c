"""The web page of a launch, and of a run."""

from typing import TYPE_CHECKING

from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from ddlrun.page.server import PageServer


class LaunchPage:
    """The page of a launch: that of its current attempt."""

    def __init__(self, port: int | None, reporter: Reporter) -> None:
        """Take the port (0: any that is free; None: no page), and the receiver of the page's address."""
        self._port, self._reporter = port, reporter
        self._server: PageServer | None = None

    def __enter__(self) -> "LaunchPage":  # noqa: PYI034 - typing.Self came with 3.11
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
            self._server = open_page(self._port, folder, "`--web`")
            self._server.start()
            self._reporter.text(f"page: {self._server.url}\n")
        self._server.folder = folder


def open_page(port: int, folder: str, name: str) -> "PageServer":
    """Return a server of a run's page, not yet started; `name` is the option of its port, 0: any. Raises InputError."""
    from ddlrun.page.server import PageServer  # noqa: PLC0415 - 30 ms, for --web alone

    try:
        return PageServer(port, folder)
    except OSError as error:
        raise InputError(f"{name} {port}: {error.strerror}; choose another port") from error
