"""A server of hosts' connections: each is served in a thread of its own, once the host has proved its secret."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ddlrun.ship.host.link import listen, welcome

BACKLOG = 4096
# The time in which a thread ends whose connection was closed.
END_SECONDS = 2.0


class LinkServer:
    """The threads that serve the hosts of one transfer."""

    def __init__(self, secret: str) -> None:
        """Listen; nothing is accepted yet."""
        self._secret = secret
        self._listener = listen()
        self._listener.listen(BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._links: set[socket.socket] = set()

    def serve(self, link: socket.socket, address: str, body: Mapping[str, Any]) -> None:
        """Serve a connection, from a host's address and with its request."""
        raise NotImplementedError

    def accept_hosts(self) -> None:
        """Start to accept connections."""
        self._run(self._accept)

    def close(self) -> None:
        """Accept no more connections, and end the threads: hosts have ended, or are cut off."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in tuple(self._links):
            with suppress(OSError):  # it has just ended
                link.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                link, address = self._listener.accept()
            except OSError:
                return
            self._links.add(link)
            self._run(self._greet, link, address[0].removeprefix("::ffff:"))

    def _greet(self, link: socket.socket, address: str) -> None:
        with link:
            body = welcome(link, self._secret)
            if body is not None:
                self.serve(link, address, body)
        self._links.discard(link)
