"""A server of hosts' connections: each is served in a thread of its own, once the host has proved its secret."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddlrun.listening import bind_free_port
from ddlrun.ship.host.link import BACKLOG, GREETING_SECONDS, welcome
from ddlrun.unauthenticated import MOST, UnauthenticatedConnections

# The time in which a thread ends whose connection was closed.
END_SECONDS = 2.0


class LinkServer:
    """The threads that serve the hosts of one transfer."""

    def __init__(self, secret: str, addresses: Sequence[str], hosts: int) -> None:
        """Listen for a number of hosts on this machine's addresses; nothing is accepted yet."""
        self._secret = secret
        self._listeners = [socket.socket(fileno=bound.detach()) for bound in bind_free_port(addresses)]
        self.port: int = self._listeners[0].getsockname()[1]
        self._threads: set[threading.Thread] = set()
        self._links: set[socket.socket] = set()
        self._unauthenticated = UnauthenticatedConnections(GREETING_SECONDS, max(MOST, hosts))

    def serve(self, link: socket.socket, address: str, body: Mapping[str, Any]) -> None:
        """Serve a connection, from a host's address and with its request."""
        raise NotImplementedError

    def accept_hosts(self) -> None:
        """Start to accept connections."""
        for listener in self._listeners:
            listener.listen(BACKLOG)
            self._run(self._accept, (listener,))

    def close(self) -> None:
        """Accept no more connections, and end the threads: hosts have ended, or are cut off."""
        for listener in self._listeners:
            with suppress(OSError):  # nothing was accepted yet
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in tuple(self._links):
            with suppress(OSError):  # it has just ended
                link.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + END_SECONDS
        for thread in tuple(self._threads):
            if thread.is_alive():  # another thread may be about to start it
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

    def _accept(self, listener: socket.socket) -> None:
        for link, address in self._unauthenticated.accept(listener):
            self._links.add(link)
            self._run(self._greet, (link, address.removeprefix("::ffff:")))

    def _greet(self, link: socket.socket, address: str) -> None:
        with link:
            body = welcome(link, self._secret)
            self._unauthenticated.remove(link)
            if body is not None:
                self.serve(link, address, body)
        self._links.discard(link)
