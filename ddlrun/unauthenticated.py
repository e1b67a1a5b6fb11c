"""Unauthenticated connections: limit their number and time."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Small, so that the job has enough open files.
MOST = 64
CHECK_SECONDS = 1.0
# Errors after which a listener still works, and the seconds until the next attempt.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED, errno.EINTR)
RETRY_SECONDS = 0.1


class UnauthenticatedConnections:
    """The unauthenticated connections of a server. Threads that read from one notice when it is dropped."""

    def __init__(self, seconds: float, most: int = MOST) -> None:
        """Begin without connections; one is dropped after some seconds, and the oldest beyond a number of them."""
        self._seconds, self._most = seconds, most
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def accept(self, listener: socket.socket) -> Iterator[tuple[socket.socket, str]]:
        """Yield new connections of a listener with their remote addresses, until it is shut down or closed."""
        while True:
            try:
                listener.settimeout(CHECK_SECONDS)
                link, address = listener.accept()
            except socket.timeout:  # noqa: UP041 - hosts may have Python 3.8, where it is no TimeoutError
                self.drop_overdue()
            except OSError as error:
                if error.errno not in TRANSIENT:
                    return
                self.drop(0)
                time.sleep(RETRY_SECONDS)
            else:
                self.add(link)
                yield link, address[0]

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
