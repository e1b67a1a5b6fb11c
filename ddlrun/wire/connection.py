"""Connections that never block: frames and raw bytes in both directions, over a socket or two pipes.

What the kernel does not take at once waits in an outbox. A connection in a loop sends the rest as soon as there is
room, and watches for that only while something waits. `unsent` is the number of bytes in the outbox: whoever produces
data pauses while they are too many. Errors of sending are reported by the next `read`, once, like the end.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os

from ddlrun.wire.frames import Decoder, Encoder
from ddlrun.wire.loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ddlrun.wire.frames import Agreement, Bytes
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 18
# Buffers that are passed to the kernel at once (at most IOV_MAX, which is 1024).
MOST_BUFFERS = 256


class ClosedError(ConnectionError):
    """The other end has closed the connection."""

    def __init__(self) -> None:
        super().__init__(0, "it has closed the connection")


class Pipes:
    """Two pipes, with the methods of a socket that a connection uses; -1: there is no such direction."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Take over the pipes."""
        self.read_fd, self.write_fd = read_fd, write_fd
        for fd in (read_fd, write_fd):
            if fd >= 0:
                os.set_inheritable(fd, False)

    def fileno(self) -> int:
        """Return the descriptor to read from."""
        return self.read_fd

    def setblocking(self, blocking: bool, /) -> None:  # noqa: FBT001 - as of a socket
        """Let calls wait or not."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.set_blocking(fd, blocking)

    def recv(self, most: int) -> bytes:
        """Read."""
        return os.read(self.read_fd, most)

    def recvmsg_into(self, buffers: Sequence[memoryview | bytearray]) -> tuple[int]:
        """Read into buffers, one after the other."""
        return (os.readv(self.read_fd, buffers),)

    def sendmsg(self, buffers: list[Bytes], _ancillary: object, _flags: int) -> int:
        """Write."""
        return os.writev(self.write_fd, buffers)

    def shutdown(self, _how: int) -> None:
        """Close the direction to the other end."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Close both directions."""
        self.shutdown(_socket.SHUT_WR)
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


class Connection:
    """A connection over a socket or two pipes. Before `begin`, it carries raw bytes alone."""

    def __init__(self, link: _socket.socket | Pipes) -> None:
        """Take over a connected socket, or pipes."""
        link.setblocking(False)
        self.link = link
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
        self._watched = 0
        self.reading = True
        """Whether a loop watches for what arrives: see `pause`."""

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
        size = sum(map(len, buffers))
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
        try:
            return self.link.sendmsg(buffers[:MOST_BUFFERS], (), _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno is None:  # it is of a signal handler
                raise
            self._error = error
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
        self.is_drained = len(data) < most
        if not data:
            raise self._error or ClosedError
        return data

    def read_into(self, buffer: memoryview, ahead: int = 0) -> int:
        """Read the payload of a frame into a buffer; return the number of bytes, 0 if none has arrived (see read).

        Up to `ahead` bytes of what follows are read in the same call of the kernel, and counted. If there are any, the
        payload is complete, and `decoder.feed(b"")` yields the frames among them.
        """
        taken = self.decoder.take(len(buffer))
        if taken:
            buffer[: len(taken)] = taken
            return len(taken)
        following = bytearray(ahead)
        try:
            size = self.link.recvmsg_into((buffer, following))[0]
        except BlockingIOError:
            self.is_drained = True
            return 0
        self.is_drained = size < len(buffer) + ahead
        if not size:
            raise self._error or ClosedError
        if size > len(buffer):
            self.decoder.add(following[: size - len(buffer)])
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
            if self._loop is not None:
                self._loop.forget(self.link.fileno())
                if isinstance(self.link, Pipes):
                    self._loop.forget(self.link.write_fd)
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
        changed, self._watched = wanted ^ self._watched, wanted
        if not isinstance(self.link, Pipes):
            self._loop.watch(self.link.fileno(), wanted, self._on_events)
            return
        if changed & ~WRITE and self.link.read_fd >= 0:
            self._loop.watch(self.link.read_fd, wanted & ~WRITE, self._on_events)
        if wanted & WRITE:
            self._loop.watch(self.link.write_fd, WRITE, self._on_events)
        elif changed & WRITE:
            self._loop.forget(self.link.write_fd)

    def _end_sending(self) -> None:
        self._update()
        try:
            self.link.shutdown(_socket.SHUT_WR)
        except OSError as error:
            self._error = self._error or error
