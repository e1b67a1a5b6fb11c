"""Connections that never block: frames and raw bytes in both directions; and how they begin, the handshake.

What the kernel does not take at once waits in an outbox. A connection in a loop sends the rest as soon as there is
room, and watches for that only while something waits. `unsent` is the number of bytes in the outbox: whoever produces
data pauses while they are too many. The next `read` reports an error of sending, once, like the end. A broken pipe is
the end: the other end was closed before the last bytes were sent.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import time

from ddlrun.wire.frames import Decoder, Encoder
from ddlrun.wire.loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ddlrun.wire.authentication import Handshake
    from ddlrun.wire.frames import Agreement, Bytes
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 18
# Buffers that are passed to the kernel at once (at most IOV_MAX, which is 1024).
MOST_BUFFERS = 256
MOMENT = 1e-3
NO_ROOM = bytearray()


class ClosedError(ConnectionError):
    """The other end has closed the connection."""

    def __init__(self) -> None:
        super().__init__(0, "it has closed the connection")


class Connection:
    """A connection over a socket (see pipes.py for another one). Before `begin`, it carries raw bytes alone."""

    link: _socket.socket

    def __init__(self, link: _socket.socket | None) -> None:
        """Take over a connected socket; None: until `connect`, all that is sent waits."""
        self.is_connected = False
        """Whether there was a socket, even if it is closed."""
        self.open = True
        """Whether `close` was not called."""
        self.unsent = 0
        """The number of bytes that wait to be sent."""
        self._outbox: list[Bytes] = []
        self._completions: list[tuple[int, Callable[[], None]]] = []
        """What to call once a number of the bytes that waited was sent, in this order."""
        self._queued = 0
        """The number of bytes that waited, or wait, to be sent."""
        self._error: OSError | None = None
        """The error of sending that the next read reports."""
        self._finishing = False
        self.is_drained = True
        """False if the last read has filled all of its room, so that more may have arrived."""
        self._loop: Loop | None = None
        self.reading = True
        """Whether a loop watches for what arrives: see `pause`."""
        if link is not None:
            self.connect(link)

    def connect(self, link: _socket.socket) -> None:
        """Take over a connected socket, and send what waits."""
        link.setblocking(False)
        self.link, self.is_connected = link, True
        self.flush()

    def begin(self, agreement: Agreement, *, sent: Mapping[bytes, int], received: Mapping[bytes, int]) -> None:
        """Send and receive frames from now on, given the length of the longest text per kind in each direction."""
        self.encoder = Encoder(agreement.outgoing, sent)
        self.decoder = Decoder(agreement.incoming, received)

    def fileno(self) -> int:
        """Return the descriptor to read from; -1 after `close`."""
        return self.link.fileno()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, kind: bytes, text: Bytes = b"", completion: Callable[[], None] | None = None) -> bool:
        """Send a frame (see send_raw). After `close` this does nothing."""
        return self.send_raw(self.encoder.encode(kind, text), completion) if self.open else False

    def send_raw(self, buffers: list[Bytes], completion: Callable[[], None] | None = None) -> bool:
        """Send bytes; return True if the kernel took all of them at once.

        If not, the rest is sent later, in place: it must not change until the completion is called, which is not called
        otherwise.
        """
        if not self.open or self._error is not None or self._finishing:
            return False
        size = 0
        for buffer in buffers:  # quicker than sum
            size += len(buffer)
        sent = 0 if self._outbox else self._send_some(buffers)
        if sent == size:
            return True
        if self._error is None:
            self._outbox += buffers
            self.unsent += size
            self._queued += size
            self._remove_sent(sent)
            if completion is not None:
                self._completions.append((self._queued, completion))
            self._update()
        return False

    def flush(self) -> None:
        """Send as much as the kernel takes now."""
        while self.unsent and self.open:
            sent = self._send_some(self._outbox)
            if not sent:
                break
            self._remove_sent(sent)
        if self._finishing and not self.unsent:
            self._end_sending()
        self._update()

    def copy_unsent(self) -> None:
        """Copy what waits to be sent: its memory may change from now on."""
        self._outbox = list(map(bytes, self._outbox))

    def _send_some(self, buffers: list[Bytes]) -> int:
        """Return the number of bytes that the kernel took."""
        if not self.is_connected:
            return 0
        try:
            return self.link.sendmsg(buffers[:MOST_BUFFERS], (), _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno is None:  # it is of a signal handler
                raise
            self._error = ClosedError() if isinstance(error, BrokenPipeError) else error
            self._discard()
            return 0

    def finish_sending(self) -> None:
        """Announce, once everything was sent, that nothing more is sent; the other end can still send."""
        self._finishing = True
        self.flush()

    def _remove_sent(self, sent: int) -> None:
        """Remove bytes that were sent from the outbox, and call the completions of those that they complete."""
        self.unsent -= sent
        whole = 0
        while whole < len(self._outbox) and sent >= len(self._outbox[whole]):
            sent -= len(self._outbox[whole])
            whole += 1
        del self._outbox[:whole]
        if sent:
            self._outbox[0] = memoryview(self._outbox[0])[sent:]
        while self._completions and self._completions[0][0] <= self._queued - self.unsent:
            self._completions.pop(0)[1]()

    # -- receiving --------------------------------------------------------------------------------

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Read once; yield the frames that are complete, as (kind, text). Raises OSError (see read) or FrameError."""
        yield from self.decoder.feed(self.read())

    def read(self, most: int = CHUNK) -> bytes:
        """Return bytes that have arrived, none if there are none. Raises OSError at the end: ClosedError, or why."""
        try:
            data = self.link.recv(most)
        except BlockingIOError:
            self.is_drained = True
            return b""
        except BrokenPipeError:
            raise ClosedError from None
        self.is_drained = len(data) < most
        if not data:
            raise self._error or ClosedError
        return data

    def read_into(self, buffer: memoryview, following: bytearray = NO_ROOM) -> int:
        """Read a payload, of which the decoder has nothing, into a buffer; return the number of bytes (0 as in `read`).

        What follows it is read in the same call of the kernel, as far as there is room for it: the decoder has it.
        """
        try:
            size = self.link.recvmsg_into((buffer, following))[0]
        except BlockingIOError:
            self.is_drained = True
            return 0
        except BrokenPipeError:
            raise ClosedError from None
        more = size - len(buffer)
        self.is_drained = more < len(following)
        if more > 0:
            self.decoder.add(following[:more])
            return len(buffer)
        if not size:
            raise self._error or ClosedError
        return size

    # -- in a loop --------------------------------------------------------------------------------

    def join(self, loop: Loop, on_readable: Callable[[], None]) -> None:
        """Let a loop send what waits, and call a function when something has arrived or the connection has ended."""
        self._loop, self._on_readable = loop, on_readable
        self._watched = 0
        self._update()

    def pause(self, *, reading: bool) -> None:
        """Watch for what arrives, or only for errors."""
        self.reading = reading
        self._update()

    def close(self) -> None:
        """Close the connection, and discard what waits to be sent. A second call does nothing."""
        if self.open:
            self.open = False
            self._discard()
            if self.is_connected and self._loop is not None:
                self._forget(self._loop)
            if self.is_connected:
                self.link.close()

    def _discard(self) -> None:
        self._outbox.clear()
        self._completions.clear()
        self.unsent = 0

    def _on_events(self, events: int) -> None:
        if events & WRITE:
            self.flush()
        if events & ~WRITE and self.open:
            self._on_readable()

    def _update(self) -> None:
        """Watch for the events that the connection waits for."""
        wanted = (READ if self.reading else 0) | (WRITE if self.unsent else 0)
        if self._loop is None or not self.open or wanted == self._watched:
            return
        self._watched = wanted
        self._watch(self._loop, wanted)

    def _watch(self, loop: Loop, events: int) -> None:
        loop.watch(self.link.fileno(), events, self._on_events)

    def _forget(self, loop: Loop) -> None:
        loop.forget(self.link.fileno())

    def _end_sending(self) -> None:
        try:
            self.link.shutdown(_socket.SHUT_WR)
        except OSError as error:
            self._error = self._error or error


class HandshakeProgress:
    """The handshake of a connection in progress, over a socket that may block or not."""

    __slots__ = ("_link", "_received", "_steps", "_wanted")

    def __init__(self, link: _socket.socket, steps: Handshake) -> None:
        """Send the first bytes. The socket is connected. Raises OSError."""
        self._link, self._steps, self._received = link, steps, b""
        self._send(*next(steps))

    def advance(self) -> Agreement | None:
        """Receive once; return the agreement at the end of the handshake. Raises OSError or HandshakeError."""
        try:
            data = self._link.recv(self._wanted - len(self._received))
        except BlockingIOError:
            return None
        if not data:
            raise ClosedError
        self._received += data
        try:
            if len(self._received) == self._wanted:
                received, self._received = self._received, b""
                self._send(*self._steps.send(received))
            if not self._wanted:
                self._steps.send(b"")
        except StopIteration as end:
            agreement: Agreement = end.value
            return agreement
        return None

    def _send(self, data: bytes, wanted: int) -> None:
        """Send a part of the handshake, for which a new connection has room."""
        self._wanted = wanted
        if data:
            self._link.send(data, _socket.MSG_NOSIGNAL)


def run_handshake(link: _socket.socket, steps: Handshake, until: float) -> Agreement:
    """Run a handshake over a socket, but no longer than until a time. Raises OSError or HandshakeError."""
    link.settimeout(max(MOMENT, until - time.monotonic()))
    progress = HandshakeProgress(link, steps)
    while (agreement := progress.advance()) is None:
        link.settimeout(max(MOMENT, until - time.monotonic()))
    return agreement
