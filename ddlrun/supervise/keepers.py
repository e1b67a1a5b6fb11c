"""The connections of all keepers: accepting them, authenticating them, receiving and sending messages."""

import _socket  # socket itself takes 6 ms to import
import errno
import time
from collections.abc import Callable, Container
from functools import partial
from itertools import islice
from typing import NamedTuple

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.supervise.keeper_connection import KeeperConnection, PeerState, SilentKeeper
from ddlrun.supervise.listener import Listener
from ddlrun.wire.loop import READ, WRITE, Loop

CHUNK = 1 << 18
# An unauthenticated connection has this long to send its greeting, and may send no more than that.
UNAUTHENTICATED_SECONDS = 10.0
MOST_UNAUTHENTICATED = 256


class KeeperEvents(NamedTuple):
    """The functions that are called for events of connections."""

    message: Callable[[KeeperConnection, bytes, bytes], None]
    """An authenticated keeper sends a message: kind and text. May raise ProtocolError."""
    hang_up: Callable[[KeeperConnection], None]
    """A keeper or an unauthenticated client has closed its connection."""
    violation: Callable[[KeeperConnection, str], None]
    """The connection of a keeper that has greeted was dropped, as it carried something else than its messages."""
    too_many_files: Callable[[], None]
    """No more files can be open."""


class Keepers:
    """All connections, by file descriptor."""

    def __init__(self, listener: Listener, loop: Loop, events: KeeperEvents, *, ranks: int = 0) -> None:
        """Accept connections, of up to `ranks` ranks at once."""
        self._listener, self._loop, self._events = listener, loop, events
        self._most_unauthenticated = max(MOST_UNAUTHENTICATED, ranks)
        self.peers: dict[int, KeeperConnection] = {}
        self._unauthenticated: dict[int, KeeperConnection] = {}
        self._nonces: set[bytes] = set()
        """The nonces of all greetings: a copy of a greeting is not one."""
        self.complete = False
        """Whether the keepers of all ranks have connected."""
        self.reading = True
        """Whether the ranks' output is read; otherwise the ranks that write any block."""
        self._listening = {listening.fileno(): listening for listening in listener.sockets}
        for fd, listening in self._listening.items():
            loop.watch(fd, READ, lambda _, listening=listening: self._accept(listening))  # type: ignore[misc]

    def _on_events(self, peer: KeeperConnection, events: int) -> None:
        if events & WRITE:
            self._flush(peer)
        if events & ~WRITE and self.peers.get(peer.link.fileno()) is peer:
            self._receive(peer)

    def send(self, peer: KeeperConnection, kind: bytes, text: str = "") -> None:
        """Send a message as soon as the other side takes it."""
        self.send_bytes(peer, kind, text.encode())

    def send_bytes(self, peer: KeeperConnection, kind: bytes, text: bytes) -> None:
        """Send a message whose text is in no encoding as soon as the other side takes it."""
        peer.queue(kind, text)
        self._flush(peer)

    def send_all(self, kind: bytes, text: str = "") -> None:
        """Send a message to all authenticated keepers."""
        for peer in list(self.peers.values()):
            if peer.trusted:
                self.send(peer, kind, text)

    @property
    def watchers(self) -> list[KeeperConnection]:
        """The processes that watch the process manager's daemons, whose keepers have left."""
        return [peer for peer in self.peers.values() if peer.watching]

    @property
    def remaining(self) -> list[KeeperConnection]:
        """The keepers that have sent the token and have not left."""
        return [peer for peer in self.peers.values() if peer.trusted and not peer.watching]

    def send_signal(self, number: int, reached: Container[int] = frozenset()) -> None:
        """Send a signal to the programs of all ranks that it has not reached."""
        for peer in self.peers.values():
            if peer.rank is not None and peer.rank not in reached:
                self.send(peer, protocol.SIGNAL, str(number))

    def read(self, now: float, *, reading: bool) -> None:
        """Read output from now on, or pause each keeper at its next output."""
        self.reading = reading
        for peer in [peer for peer in self.peers.values() if reading and peer.paused]:
            peer.paused = False
            peer.heard_at = now
            self._select_events(peer)

    def drop_silent(self, limit: float) -> list[SilentKeeper]:
        """Drop and return the keepers without a message since a time; those that are paused stay."""
        peers = [peer for peer in self.peers.values() if peer.trusted and not peer.paused and peer.heard_at < limit]
        silent = [SilentKeeper(peer, peer.acknowledged) for peer in peers]
        for peer in peers:
            self._drop(peer)
        return silent

    def drop_slow_unauthenticated(self, now: float) -> None:
        """Drop the unauthenticated connections whose time to greet is over."""
        for peer in [peer for peer in self._unauthenticated.values() if now > peer.since + UNAUTHENTICATED_SECONDS]:
            self._drop(peer)

    def stop_listening(self) -> None:
        """Accept no more connections, as all keepers have connected."""
        self.complete = True
        self._drop_unauthenticated(0)
        for peer in [peer for peer in self.peers.values() if not peer.trusted]:
            self._drop(peer)
        for fd in self._listening:
            self._loop.forget(fd)
        self._listening.clear()
        self._listener.close()

    def close(self) -> None:
        """Close all connections."""
        for peer in self.peers.values():
            peer.link.close()

    def _accept(self, listening: _socket.socket) -> None:
        while True:
            try:
                fd, _ = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as socket.accept does
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_unauthenticated(0):
                    self._events.too_many_files()
                return
            link = _socket.socket(fileno=fd)
            link.setblocking(False)
            link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            peer = self.peers[fd] = self._unauthenticated[fd] = KeeperConnection(link, time.monotonic())
            peer.on_events = partial(self._on_events, peer)
            self._select_events(peer)
            self._receive(peer)  # the listener waited for its first data, which of a keeper is its greeting
            self._drop_unauthenticated(self._most_unauthenticated)

    def _drop_unauthenticated(self, most: int) -> bool:
        """Drop all unauthenticated connections but the `most` newest ones; return True if any was dropped.

        A job's keepers connect all at once: those whose greeting has arrived are authenticated first.
        """
        oldest = list(islice(self._unauthenticated.items(), max(0, len(self._unauthenticated) - most)))
        for fd, peer in oldest:
            if self._unauthenticated.get(fd) is peer:  # a message received here may have ended the listening
                self._receive(peer)
        remaining = [peer for fd, peer in oldest if self._unauthenticated.get(fd) is peer]
        for peer in remaining:
            self._drop(peer)
        return bool(remaining)

    def _receive(self, peer: KeeperConnection) -> None:
        is_new = self._unauthenticated.get(peer.link.fileno()) is peer
        try:
            data = peer.link.recv(self._listener.secret.greeting_bytes if is_new else CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            peer.error = error.errno
            data = b""
        if not data:
            self._drop(peer)
            self._events.hang_up(peer)
            return
        now = time.monotonic()
        try:
            if is_new:
                self._greet(peer, data)
            if len(data) >= protocol.PART:
                peer.heard_at = now
            for kind, text in () if is_new else peer.feed(data):
                peer.heard_at = now
                self._events.message(peer, kind, text)
                self._pause_at(peer, kind)
        except ProtocolError as error:
            self._drop(peer)
            if peer.state is not PeerState.UNAUTHENTICATED:
                self._events.violation(peer, str(error))

    def _pause_at(self, peer: KeeperConnection, kind: bytes) -> None:
        """Pause a keeper after a message if that was output, and output is not read at present."""
        if kind in protocol.OUTPUT and not self.reading and not peer.paused:
            peer.paused = True
            self._select_events(peer)

    def _greet(self, peer: KeeperConnection, data: bytes) -> None:
        """Welcome a client if its greeting is complete. Raises ProtocolError if it does not know the secret."""
        secret = self._listener.secret
        greeting = peer.greet(data, secret.greeting_bytes)
        if greeting is None:
            return
        nonce, rank = secret.open_greeting(greeting)
        if nonce in self._nonces:
            raise ProtocolError("this greeting is a copy")
        self._nonces.add(nonce)
        del self._unauthenticated[peer.link.fileno()]
        peer.welcome(secret, nonce, rank)
        self._flush(peer)

    def _drop(self, peer: KeeperConnection) -> None:
        self._loop.forget(peer.link.fileno())
        del self.peers[peer.link.fileno()]
        self._unauthenticated.pop(peer.link.fileno(), None)
        peer.link.close()

    def _flush(self, peer: KeeperConnection) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.link.send(peer.unsent, _socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # the connection is gone, which the next read reports
        self._select_events(peer)

    def _select_events(self, peer: KeeperConnection) -> None:
        """Register for the events that the connection waits for."""
        events = (0 if peer.paused else READ) | (WRITE if peer.unsent else 0)
        if events != peer.watched and peer.on_events is not None:
            peer.watched = events
            self._loop.watch(peer.link.fileno(), events, peer.on_events)
