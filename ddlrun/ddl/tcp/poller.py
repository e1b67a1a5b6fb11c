"""Sockets with their handlers, and the handshakes of new connections, on one epoll."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ddlrun.ddl.tcp.handshake import HandshakeError
from ddlrun.ddl.tcp.own_host import is_of_system

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.tcp.handshake import Greeting, Handshake

READ, WRITE, EDGE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT, select.EPOLLET
# The longest wait in seconds that is passed to the kernel, which counts milliseconds in 31 bits.
LONGEST = 3600.0
# Limits of unauthenticated connections: seconds, and their number in addition to one per rank.
LONGEST_HANDSHAKE, MOST_UNAUTHENTICATED = 10.0, 256


class Poller:
    """An epoll whose sockets have handlers. `handler(mask)` is called with the events of a socket."""

    def __init__(self, longest_handshake: float = LONGEST_HANDSHAKE) -> None:
        self._longest_handshake = longest_handshake
        self._epoll = select.epoll()
        self._handlers: dict[int, tuple[socket.socket, Callable[[int], None]]] = {}
        self._unauthenticated: dict[socket.socket, float] = {}
        """The time (time.monotonic) at which each is closed, the oldest first."""
        self._wake_at, self._wake = socket.socketpair()
        self.watch(self._wake_at, READ, self._woken)

    def watch(self, file: socket.socket, mask: int, handler: Callable[[int], None]) -> None:
        """Call a handler at the events of a socket, and no other one."""
        number = file.fileno()
        (self._epoll.modify if number in self._handlers else self._epoll.register)(number, mask)
        self._handlers[number] = file, handler

    def forget(self, file: socket.socket) -> None:
        """Close a socket. A second call does nothing."""
        if self._handlers.pop(file.fileno(), None) is not None:
            self._epoll.unregister(file.fileno())
        self._unauthenticated.pop(file, None)
        file.close()

    def limit(self, file: socket.socket, most: int) -> None:
        """Close a socket that is not trusted in time, or once there are `most` newer ones."""
        if len(self._unauthenticated) >= most:
            self.drop_unauthenticated()
        self._unauthenticated[file] = time.monotonic() + self._longest_handshake

    def trust(self, file: socket.socket) -> None:
        """Keep a socket open, as its other end has proved that it knows the secret."""
        self._unauthenticated.pop(file, None)

    def drop_unauthenticated(self) -> bool:
        """Close the oldest socket that is not trusted; return False if there is none."""
        oldest = next(iter(self._unauthenticated), None)
        if oldest is not None:
            self.forget(oldest)
        return oldest is not None

    def poll(self, seconds: float) -> bool:
        """Call the handlers of sockets with events; return False if there were none in that time."""
        if not self._unauthenticated:
            return self._poll(seconds)
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            while (end := next(iter(self._unauthenticated.values()), until)) < min(now, until):
                self.drop_unauthenticated()
            if self._poll(min(end, until) - now):
                return True
            if time.monotonic() >= until:
                return False

    def _poll(self, seconds: float) -> bool:
        events = self._epoll.poll(max(min(seconds, LONGEST), 0))
        for number, mask in events:
            if number in self._handlers:  # else another handler has closed it
                self._handlers[number][1](mask)
        return bool(events)

    def wake(self) -> None:
        """Let `poll` return. Any thread may call it."""
        with suppress(OSError):
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._epoll.closed

    def close(self) -> None:
        """Close all sockets."""
        for file, _ in self._handlers.values():
            file.close()
        self._handlers.clear()
        self._unauthenticated.clear()
        self._wake.close()
        self._epoll.close()

    def _woken(self, _mask: int) -> None:
        with suppress(BlockingIOError):
            self._wake_at.recv(4096, socket.MSG_DONTWAIT)


class Introduction:
    """The handshake of a connection in progress.

    `done` is called with the greeting at its end; `failed` with the error if the connection breaks or is refused.
    """

    def __init__(
        self,
        poller: Poller,
        file: socket.socket,
        steps: Handshake,
        done: Callable[[socket.socket, Greeting], None],
        failed: Callable[[OSError | HandshakeError], None],
    ) -> None:
        self._poller, self._file, self._steps, self._done, self._failed = poller, file, steps, done, failed
        self._received, self._wanted = b"", 0
        self._begun = False
        poller.watch(file, WRITE, self._advance)  # a socket is writable once it is connected

    def _advance(self, _mask: int) -> None:
        try:
            greeting = self._step()
        except (OSError, HandshakeError) as error:
            if isinstance(error, OSError) and not is_of_system(error):
                raise
            self._poller.forget(self._file)
            self._failed(error)
            return
        if greeting is not None:
            self._done(self._file, greeting)

    def _step(self) -> Greeting | None:
        """Receive and send what is possible; return the greeting at the end of the handshake."""
        try:
            if not self._begun:
                code = self._file.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                self._begun = True
                self._poller.watch(self._file, READ, self._advance)
                self._send(*next(self._steps))
                return None
            data = self._file.recv(self._wanted - len(self._received))
            if not data:
                raise ConnectionResetError(0, "it has closed the connection")
            self._received += data
            if len(self._received) == self._wanted:
                self._send(*self._steps.send(self._received))
            if not self._wanted:
                self._steps.send(b"")
        except BlockingIOError:
            pass
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        return None

    def _send(self, data: bytes, wanted: int) -> None:
        """Send a part of the handshake, for which a new connection has room."""
        self._received, self._wanted = b"", wanted
        if data:
            self._file.send(data)
