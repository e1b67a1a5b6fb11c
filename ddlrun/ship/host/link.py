"""The connections on which archives and results travel: their handshakes, their messages, and what follows these.

A host connects to ddlrun, or to the host before it in the chain of an archive. The claim of its handshake (see
wire/authentication.py) has the SHA-256 of the archive, zeros for results; the number of the host; and the port on which
it passes archives on. Texts are JSON.

kind    from    text             payload
HERE    either                   the archive, up to its size or, if compressed, up to the end of the connection
BEFORE  ddlrun  [address, port]  of the host before it in the chain, from which the archive comes
FILES   host    [Row, ...]       the contents of these files, one after the other; then ddlrun closes the connection

The reply to each host is HERE or BEFORE; for results, HERE has no payload, and FILES follows.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from typing import NamedTuple

from ddlrun.ship.host.unpack import BLOCK
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import ClosedError, run_handshake
from ddlrun.wire.frames import Decoder, Encoder, FrameError
from ddlrun.wire.listening import Acceptor, AcceptorEvents
from ddlrun.wire.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ddlrun.wire.frames import Agreement, Bytes

CLAIM = struct.Struct(">32sIH")
NO_ARCHIVE = bytes(32)
HERE, BEFORE, FILES = b"H", b"B", b"F"
# The length of the longest text per kind.
LONGEST = {HERE: 4, BEFORE: 1 << 10, FILES: 1 << 28}
# Time limits in seconds: of the handshake, and, on hosts, without any progress.
HANDSHAKE_SECONDS, SILENCE_SECONDS = 20.0, 120.0
BACKLOG = 4096
# Small, so that the job has enough open files.
MOST_UNAUTHENTICATED = 64
RETRY_SECONDS = 0.1


class LinkError(Exception):
    """A connection failed; the text says why."""


class HostLink:
    """A connection that blocks, after its handshake."""

    def __init__(self, link: _socket.socket, agreement: Agreement, silence: float | None = SILENCE_SECONDS) -> None:
        """Take over the connection. `silence` is the time in which something has to come."""
        self.socket, self.claim = link, agreement.claim
        self.socket.settimeout(silence)
        self.close = link.close
        self._encoder, self._decoder = Encoder(agreement.outgoing, LONGEST), Decoder(agreement.incoming, LONGEST)

    def send(self, kind: bytes, value: object = None) -> None:
        """Send a message. Raises OSError."""
        self.socket.sendall(b"".join(self._encoder.encode(kind, json.dumps(value).encode())))

    def receive(self, *kinds: bytes) -> Any:  # noqa: ANN401 - what the other end has sent
        """Return the value of the next message, which has to be of some kinds. Raises as `_receive`, or FrameError."""
        data = b""
        while True:
            for kind, text in self._decoder.feed(data):
                if kind not in kinds:
                    raise FrameError(f"a message of kind {kind!r} comes in place of another one")
                try:
                    return json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise FrameError("it sent a message that cannot be read") from error
            data = self._receive(BLOCK)

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
    secret: Secret

    def open(self, claim: bytes, tries: int = 2) -> tuple[HostLink, Any]:
        """Connect; return the connection, and the value of the reply: None for HERE.

        It is tried once more where something was altered on the way. Raises LinkError, OSError or FrameError.
        """
        link = self.reach()
        try:
            agreement = run_handshake(link, connect_as(self.secret, claim), time.monotonic() + HANDSHAKE_SECONDS)
            host_link = HostLink(link, agreement)
            return host_link, host_link.receive(HERE, BEFORE)
        except BaseException as error:
            link.close()
            if tries == 1 or not isinstance(error, (ConnectionError, FrameError)):
                raise
        return self.open(claim, tries - 1)

    def reach(self) -> socket.socket:
        """Connect to the first address that can be reached, without a handshake. Raises LinkError."""
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
        self._acceptor = Acceptor(self.loop, listeners, secret, self, CLAIM.size, most=most, seconds=HANDSHAKE_SECONDS)
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

    def __init__(self, link: _socket.socket, secret: Secret) -> None:
        """Start to accept connections, at a free port of this end's address of a connection."""
        listener = socket.socket(link.family)
        listener.bind((link.getsockname()[0], 0, *link.getsockname()[2:]))
        super().__init__([listener], secret)
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
            self._links[CLAIM.unpack(agreement.claim)[0].hex()] = HostLink(link, agreement)
            self._arrived.notify_all()
