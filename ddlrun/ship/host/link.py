"""The connections of a host: to ddlrun, to the host before it in a chain, and from the next one."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import NamedTuple

from ddlrun.ship.host.protocol import (
    DIGEST_BYTES,
    HANDSHAKE_SECONDS,
    NO_ARCHIVE,
    SILENCE_SECONDS,
    TO_DDLRUN,
    TO_HOST,
)
from ddlrun.ship.host.unpack import BLOCK
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import ClosedError, run_handshake
from ddlrun.wire.frames import Decoder, Encoder, FrameError
from ddlrun.wire.listening import Acceptor, AcceptorEvents
from ddlrun.wire.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Mapping, Sequence

    from ddlrun.wire.frames import Agreement, Bytes

BACKLOG = 4096
# Small, so that the job has enough open files.
MOST_UNAUTHENTICATED = 64
RETRY_SECONDS = 0.1


class LinkError(Exception):
    """A connection failed; the text says why."""


class HostLink:
    """A connection that blocks."""

    def __init__(
        self, link: _socket.socket, agreement: Agreement, sent: Mapping[bytes, int], received: Mapping[bytes, int],
        silence: float | None = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        """Take over a connection after its handshake.

        The tables have the length of the longest text per kind; `silence` is the time in which something has to come.
        """
        self.socket = link
        self.socket.settimeout(silence)
        self.close = link.close
        self._encoder, self._decoder = Encoder(agreement.outgoing, sent), Decoder(agreement.incoming, received)

    def send(self, kind: bytes, record: object = None) -> None:
        """Send a message. Raises OSError."""
        text = b"" if record is None else json.dumps(record).encode()
        self.socket.sendall(b"".join(self._encoder.encode(kind, text)))

    def receive(self, kind: bytes) -> bytes:
        """Return the text of the next message, which has to be of a kind. Raises as `_receive`, or FrameError."""
        data = b""
        while True:
            for received, text in self._decoder.feed(data):
                if received != kind:
                    raise FrameError(f"a message of kind {received!r} comes in place of one of kind {kind!r}")
                return text
            data = self._receive(BLOCK)

    def ask(self, reply: bytes, kind: bytes, record: object, seconds: float) -> bytes:
        """Send a message, if there is one, and return the text of the reply; close after an error, as of `receive`."""
        try:
            if kind:
                self.send(kind, record)
            self.socket.settimeout(seconds)
            text = self.receive(reply)
            self.socket.settimeout(SILENCE_SECONDS)
        except BaseException:
            self.close()
            raise
        return text

    def blocks(self, size: int | None) -> Iterator[Bytes]:
        """Yield the blocks of a payload of some size, or up to the end. Raises as `_receive`."""
        left = size
        while left != 0:
            most = BLOCK if left is None else min(BLOCK, left)
            try:
                block = self._decoder.take(most) or self._receive(most)
            except ClosedError:
                if left is None:
                    return
                raise
            left = None if left is None else left - len(block)
            yield block

    def _receive(self, most: int) -> bytes:
        """Return the next bytes. Raises ClosedError at the end, LinkError where none come, or OSError."""
        try:
            data = self.socket.recv(most)
        except socket.timeout:  # noqa: UP041 - hosts may have Python 3.8, where it is not a TimeoutError
            raise LinkError(f"nothing has come for {self.socket.gettimeout():g} s") from None
        if not data:
            raise ClosedError
        return data


class RemoteEnd(NamedTuple):
    """Another end: ddlrun, or the host before this one in a chain."""

    addresses: Sequence[str]
    port: int
    secret: str
    claim: bytes = NO_ARCHIVE

    def connect(self) -> HostLink:
        """Connect, and check that the other end knows the secret; try once more where the handshake was altered.

        Raises LinkError, OSError or FrameError.
        """
        try:
            return self._connect()
        except (ConnectionError, FrameError):
            return self._connect()

    def ask(
        self, reply: bytes, kind: bytes = b"", record: object = None, *, seconds: float = SILENCE_SECONDS,
        link: HostLink | None = None,
    ) -> tuple[HostLink, bytes]:  # fmt: skip
        """Send a message, if there is one, and wait for the reply; return the connection and the reply's text.

        Where one was altered on the way, it is sent once more. Raises LinkError, OSError or FrameError.

        Args:
            reply: The kind of the reply.
            kind: The kind of the message.
            record: Its content.
            seconds: The time in which the reply has to come.
            link: The connection; None: a new one.
        """
        link = link or self.connect()
        try:
            return link, link.ask(reply, kind, record, seconds)
        except (ConnectionError, FrameError):
            link = self.connect()
            return link, link.ask(reply, kind, record, seconds)

    def _connect(self) -> HostLink:
        link = self._reach()
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            steps = connect_as(Secret(self.secret), self.claim)
            return HostLink(link, run_handshake(link, steps, time.monotonic() + HANDSHAKE_SECONDS), TO_DDLRUN, TO_HOST)
        except BaseException:
            link.close()
            raise

    def _reach(self) -> socket.socket:
        """Connect to the first address that can be reached."""
        error: Exception = LinkError("no address")
        for address in self.addresses:
            try:
                return socket.create_connection((address, self.port), HANDSHAKE_SECONDS)
            except OSError as failure:
                error = failure
        raise LinkError(f"cannot connect to port {self.port} of {', '.join(self.addresses) or 'no address'}: {error}")


class Server(AcceptorEvents):
    """A thread with a loop, which accepts connections of hosts."""

    def __init__(self, listeners: Sequence[_socket.socket], secret: Secret, most: int = MOST_UNAUTHENTICATED) -> None:
        """Take over bound sockets; at most some connections are unauthenticated at a time."""
        self.loop = Loop()
        for listener in listeners:
            listener.listen(BACKLOG)
        self.port: int = listeners[0].getsockname()[1]
        self._acceptor = Acceptor(
            self.loop, listeners, secret, self, DIGEST_BYTES, most=most, seconds=HANDSHAKE_SECONDS
        )
        self.closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Serve connections from now on."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, and end the thread."""
        self.closing = True
        self.loop.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._acceptor.close()
        self.loop.close()

    def on_full(self, error: OSError) -> None:  # noqa: ARG002 - see AcceptorEvents
        """Wait: another thread may close files."""
        time.sleep(RETRY_SECONDS)

    def _run(self) -> None:
        while not self.closing:
            self.loop.wait()


class Successors(Server):
    """The connections of the next hosts, by the archive that they ask for."""

    def __init__(self, link: _socket.socket, secret: str) -> None:
        """Start to accept connections, at a free port of this end's address of a connection."""
        listener = socket.socket(link.family)
        listener.bind((link.getsockname()[0], 0, *link.getsockname()[2:]))
        super().__init__([listener], Secret(secret))
        self._links: dict[str, HostLink] = {}
        self._arrived = threading.Condition()
        self.start()

    def take(self, digest: str) -> HostLink:
        """Return the connection of the host that is to get an archive. Raises LinkError if none comes."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: digest in self._links, SILENCE_SECONDS):
                raise LinkError("the next host does not connect")
            return self._links.pop(digest)

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Keep a connection until `take`."""
        with self._arrived:
            self._links[agreement.claim.hex()] = HostLink(link, agreement, TO_HOST, {})
            self._arrived.notify_all()
