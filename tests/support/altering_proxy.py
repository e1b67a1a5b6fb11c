"""A proxy between two ends of a TCP connection that alters one bit of what passes."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

CHUNK = 1 << 16
BIT = 1


class Place(NamedTuple):
    """The byte to alter: its number in a direction of one connection."""

    to_server: bool
    byte: int
    connection: int = 0


class AlteringProxy:
    """The connections that lead to a server."""

    def __init__(self, place: Place, find_server: Callable[[], int]) -> None:
        """Listen on loopback.

        Args:
            place: The byte to alter.
            find_server: Returns the server's port, once a client has connected.
        """
        self._place, self._find_server = place, find_server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.altered = False
        """Whether the byte has passed."""

    def serve(self) -> None:
        """Accept connections until the listener is closed, and wait for the end of all."""
        threads: list[threading.Thread] = []
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                wanted = len(threads) == self._place.connection
                threads.append(threading.Thread(target=self._connect, args=(client, wanted)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def _connect(self, client: socket.socket, wanted: bool) -> None:  # noqa: FBT001 - of a thread
        """Pass on what both ends of a connection send, until both have closed it or one has reset it.

        A client that comes when the server has gone (a keeper's next try, after the job) finds a closed connection.
        """
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._find_server())) as server,
        ):
            others, counts = {client: server, server: client}, {client: 0, server: 0}
            while others:
                for source in select.select([*others], [], [])[0]:
                    data = source.recv(CHUNK)
                    altered = wanted and (source is client) == self._place.to_server
                    others[source].sendall(self._alter(data, counts[source]) if altered else data)
                    counts[source] += len(data)
                    if not data:
                        others.pop(source).shutdown(socket.SHUT_WR)

    def _alter(self, data: bytes, at: int) -> bytes:
        index = self._place.byte - at
        if not 0 <= index < len(data):
            return data
        self.altered = True
        return data[:index] + bytes([data[index] ^ BIT]) + data[index + 1 :]


@contextlib.contextmanager
def altering(place: Place, find_server: Callable[[], int]) -> Iterator[AlteringProxy]:
    """Run a proxy."""
    proxy = AlteringProxy(place, find_server)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
