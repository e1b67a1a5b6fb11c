"""ddlrun's end of the connections of hosts: a loop in a thread serves all of them, each by the steps of a generator."""

import _socket
import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from ddlrun.listening import bind_free_port
from ddlrun.ship.host.link import BACKLOG, MOST_UNAUTHENTICATED, Server
from ddlrun.ship.host.protocol import TO_DDLRUN, TO_HOST
from ddlrun.ship.host.unpack import BLOCK
from ddlrun.wire.authentication import SHA256, Secret
from ddlrun.wire.connection import Connection
from ddlrun.wire.frames import Agreement, FrameError

# Steps yield FRAME, and get a frame (kind, text); or the number of bytes that are left of a payload, and get some.
Steps = Generator[int, Any, None]
FRAME = 0
# More than the frames and payloads that are received at once beside a payload.
MOST_TURNS = 16


def draw_secret() -> Secret:
    """Return a new secret. Each host's Python has its algorithm, also in FIPS mode."""
    return Secret(f"{SHA256}:{os.urandom(32).hex()}")


def receive(kind: bytes) -> Generator[int, Any, bytes]:
    """Return the text of the next frame, which has to be of a kind; a part of the steps. Raises FrameError."""
    received, text = yield FRAME
    if received != kind:
        raise FrameError(f"a message of kind {received!r} comes in place of one of kind {kind!r}")
    return bytes(text)


class HostServer(Server):
    """The connections of the hosts of one transfer."""

    def __init__(self, secret: Secret, addresses: Sequence[str], hosts: int) -> None:
        """Listen for a number of hosts on this machine's addresses."""
        listeners = bind_free_port(addresses)
        for listener in listeners:
            listener.listen(BACKLOG)
        super().__init__(listeners, secret, max(MOST_UNAUTHENTICATED, hosts))
        self.port: int = listeners[0].getsockname()[1]
        self.buffer = memoryview(bytearray(BLOCK))
        """The part of a payload that has just arrived."""
        self.conversations: set[Conversation] = set()

    def serve(self, conversation: "Conversation", claim: bytes) -> Steps:
        """Serve a connection; at the end of the steps it is closed.

        Raises FrameError or OSError to close it. Those of receiving are raised at a yield.
        """
        raise NotImplementedError

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Serve a connection."""
        Conversation(self, link, agreement).start()

    def close(self) -> None:
        """Accept no more connections, and close all: hosts have ended, or are cut off."""
        super().close()
        for conversation in tuple(self.conversations):
            conversation.close()


class Conversation:
    """A connection of a host, and the steps that serve it."""

    def __init__(self, server: HostServer, link: _socket.socket, agreement: Agreement) -> None:
        """Take over a connection."""
        self.connection = Connection(link)
        self.connection.begin(agreement, sent=TO_HOST, received=TO_DDLRUN)
        self._server = server
        self._link = link
        self._steps = server.serve(self, agreement.claim)
        self._wanted = FRAME
        server.conversations.add(self)

    @property
    def address(self) -> str:
        """The address of the other end. Raises OSError."""
        return str(self._link.getpeername()[0]).removeprefix("::ffff:")

    def start(self) -> None:
        """Begin with the steps."""
        self.connection.join(self._server.loop, self._advance)
        self._advance(start=True)

    def close(self) -> None:
        """Close the connection."""
        self._server.conversations.discard(self)
        self.connection.close()
        self._steps.close()

    def _advance(self, *, start: bool = False) -> None:
        """Pass what has arrived on to the steps; what is left after MOST_TURNS, in a later turn of the loop."""
        try:
            if start:
                self._wanted = next(self._steps)
            for _ in range(MOST_TURNS):
                received = self._receive()
                if received is None:
                    return
                self._wanted = self._steps.send(received)
        except (OSError, FrameError, StopIteration) as error:
            with suppress(OSError, FrameError, StopIteration):
                self._steps.throw(error)
            self.close()

    def _receive(self) -> memoryview | tuple[bytes, bytes] | None:
        """Return the next frame or a part of a payload; None if that has not arrived. Raises FrameError or OSError."""
        if self._wanted == FRAME:
            return next(self.connection.receive(), None)
        size = self.connection.read_into(self._server.buffer[: self._wanted])
        return self._server.buffer[:size] if size else None
