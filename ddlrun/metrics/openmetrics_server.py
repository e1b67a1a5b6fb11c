"""HTTP servers on the loopback interface, and the server of a run's metrics."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any

from ddlrun.metrics.openmetrics import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared with what the user has given
PATH = "/metrics"
FRONT_PAGE = f'<!doctype html><title>ddlrun</title><p>The metrics of the run are at <a href="{PATH}">{PATH}</a>.\n'
# A client has this time for its request.
REQUEST_SECONDS = 5.0
# The most connections without a request; small, so that the job has enough open files.
MOST_UNAUTHENTICATED = 64
CHECK_SECONDS = 1.0


class UnauthenticatedConnections:
    """Connections whose request has not been read. Threads that read from one notice when it is dropped."""

    def __init__(self, seconds: float, most: int = MOST_UNAUTHENTICATED) -> None:
        """Begin without connections; one is dropped after some seconds, and the oldest beyond a number of them."""
        self._seconds, self._most = seconds, most
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def add(self, link: socket.socket) -> None:
        """Add a new connection; drop the oldest one if there are too many."""
        with self._lock:
            self._since[link] = time.monotonic()
        self.drop(self._most)

    def remove(self, link: socket.socket) -> None:
        """Remove a connection that was authenticated or closed."""
        with self._lock:
            self._since.pop(link, None)

    def drop(self, most: int) -> None:
        """Drop the oldest connections beyond a number."""
        with self._lock:
            self._end(list(self._since)[: max(0, len(self._since) - most)])

    def drop_overdue(self) -> None:
        """Drop the connections whose time is over."""
        before = time.monotonic() - self._seconds
        with self._lock:
            self._end([link for link, since in self._since.items() if since < before])

    def _end(self, links: list[socket.socket]) -> None:
        for link in links:
            del self._since[link]
            with contextlib.suppress(OSError):  # it has just been closed
                link.shutdown(socket.SHUT_RDWR)


class LocalServer(ThreadingHTTPServer):
    """A server with few unauthenticated connections at a time, for programs on this computer by default."""

    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler], address: str = LOOPBACK) -> None:
        """Listen on a port of an address, 0: any that is free. Raises OSError."""
        self.unauthenticated = UnauthenticatedConnections(REQUEST_SECONDS)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Bind the port. The base class would look up this computer's name, which may block."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

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


class LocalHandler(BaseHTTPRequestHandler):
    """A handler of a request."""

    timeout = REQUEST_SECONDS

    def send_text(self, text: str, kind: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Answer with a text, which is not to be stored."""
        content = text.encode()
        self.send_head(kind, {**headers, "Content-Length": str(len(content))})
        self.wfile.write(content)

    def send_head(self, kind: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Begin an answer of a media type."""
        self.send_response(HTTPStatus.OK)
        always = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        for name, value in {"Content-Type": kind, **always, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


class MetricsServer(LocalServer):
    """A server of the metrics of a run."""

    timeout = CHECK_SECONDS

    def __init__(self, port: int, render: Callable[[], str], address: str = LOOPBACK) -> None:
        """Listen on a port, 0: any that is free; `render` returns the metrics. Raises OSError."""
        self._render = render
        self._lock = threading.Lock()
        super().__init__(port, MetricsHandler, address)

    @property
    def url(self) -> str:
        """The address of the metrics."""
        name = os.uname().nodename if self.server_name in ALL_ADDRESSES else self.server_name
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}{PATH}"

    def render(self) -> str:
        """Return the metrics."""
        with self._lock:
            return self._render()

    def serve_while(self, condition: Callable[[], bool]) -> None:
        """Serve requests as long as a condition holds."""
        while condition():
            self.handle_request()
            self.service_actions()


class MetricsHandler(LocalHandler):
    """The handler of a request for the metrics."""

    server: MetricsServer

    def do_GET(self) -> None:
        """Answer with the metrics, at / with a page that names their path."""
        path = self.path.partition("?")[0]
        if path not in ("/", PATH):
            self.send_error(HTTPStatus.NOT_FOUND, f"the metrics are at {PATH}")
            return
        if path == PATH:
            self.send_text(self.server.render(), CONTENT_TYPE)
        else:
            self.send_text(FRONT_PAGE, "text/html; charset=utf-8")
