"""The HTTP server of a run's metrics, on the loopback interface."""

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from ddlrun.monitor.openmetrics import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
PATH = "/metrics"
# A client has this time for its request.
REQUEST_SECONDS = 5.0
CHECK_SECONDS = 1.0


class MetricsServer(HTTPServer):
    """A server of one page, with one request at a time."""

    timeout = CHECK_SECONDS

    def __init__(self, port: int, render: Callable[[], str]) -> None:
        """Listen on a port, 0: any that is free. Raises OSError.

        Args:
            port: The port.
            render: Returns the page.
        """
        self.render = render
        super().__init__((LOOPBACK, port), Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}{PATH}"

    def serve_while(self, condition: Callable[[], bool]) -> None:
        """Serve requests as long as a condition holds."""
        while condition():
            self.handle_request()


class Handler(BaseHTTPRequestHandler):
    """The handler of a request."""

    server: MetricsServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer with the page."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = self.server.render().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""
