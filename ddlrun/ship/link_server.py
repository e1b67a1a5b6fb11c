"""A server of hosts' connections: each is served in a thread of its own, once the host has proved its secret."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ddlrun.ship.host.link import GREETING_SECONDS, listen, welcome
from ddlrun.strangers import MOST, Strangers

# The time in which a thread ends whose connection was closed.
END_SECONDS = 2.0


class LinkServer:
    """The threads that serve the hosts of one transfer."""

    def __init__(self, secret: str, hosts: int) -> None:
        """Listen for a number of hosts; nothing is accepted yet."""
        self._secret = secret
        self._listener = listen()
        self.port: int = self._listener.getsockname()[1]
        self._threads: set[threading.Thread] = set()
        self._links: set[socket.socket] = set()
        self._strangers = Strangers(GREETING_SECONDS, max(MOST, hosts))

    def serve(self, link: socket.socket, address: str, body: Mapping[str, Any]) -> None:
        """Serve a connection, from a host's address and with its request."""
        raise NotImplementedError

    def accept_hosts(self) -> None:
        """Start to accept connections."""
        self._run(self._accept, ())

    def close(self) -> None:
        """Accept no more connections, and end the threads: hosts have ended, or are cut off."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in tuple(self._links):
            with suppress(OSError):  # it has just ended
                link.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + END_SECONDS
        for thread in tuple(self._threads):
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
        def run() -> None:
            try:
                function(*arguments)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        for link, address in self._strangers.accept(self._listener):
            self._links.add(link)
            self._run(self._greet, (link, address.removeprefix("::ffff:")))

    def _greet(self, link: socket.socket, address: str) -> None:
        with link:
            body = welcome(link, self._secret)
            self._strangers.remove(link)
            if body is not None:
                self.serve(link, address, body)
        self._links.discard(link)
