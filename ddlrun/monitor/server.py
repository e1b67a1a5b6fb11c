"""HTTP servers on the loopback interface, and the server of a run's metrics."""

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ddlrun.monitor.openmetrics import CONTENT_TYPE
from ddlrun.unauthenticated import UnauthenticatedConnections

LOOPBACK = "127.0.0.1"
PATH = "/metrics"
# A client has this time for its request.
REQUEST_SECONDS = 5.0
CHECK_SECONDS = 1.0


class LocalServer(ThreadingHTTPServer):
    """A server for programs on this computer, with few unauthenticated connections at a time."""

    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        """Listen on a port, 0: any that is free. Raises OSError."""
        self.unauthenticated = UnauthenticatedConnections(REQUEST_SECONDS)
        super().__init__((LOOPBACK, port), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, which is unauthenticated. Raises OSError."""
        try:
            link, address = super().get_request()
        except OSError:  # too many files are open
            self.unauthenticated.drop(0)
            raise
        self.unauthenticated.add(link)
        return link, address

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Close a connection."""
        self.unauthenticated.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Drop unauthenticated connections that take too long."""
        self.unauthenticated.drop_overdue()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has disconnected."""


class MetricsServer(LocalServer):
    """A server of one page."""

    timeout = CHECK_SECONDS

    def __init__(self, port: int, render: Callable[[], str]) -> None:
        """Listen on a port, 0: any that is free; `render` returns the page. Raises OSError."""
        self._render = render
        self._lock = threading.Lock()
        super().__init__(port, Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}{PATH}"

    def render(self) -> str:
        """Return the page."""
        with self._lock:
            return self._render()

    def serve_while(self, condition: Callable[[], bool]) -> None:
        """Serve requests as long as a condition holds."""
        while condition():
            self.handle_request()
            self.service_actions()


class Handler(BaseHTTPRequestHandler):
    """The handler of a request."""

    server: MetricsServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer with the page, also at /."""
        if self.path.partition("?")[0] not in ("/", PATH):
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
