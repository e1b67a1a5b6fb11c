"""The connections of all keepers: accepting them, authenticating them, receiving and sending messages."""

import _socket  # socket itself takes 6 ms to import
import time
from collections.abc import Callable, Container
from functools import partial
from typing import NamedTuple

from ddlrun.keeper import protocol
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.listener import Listener
from ddlrun.wire.authentication import HandshakeError
from ddlrun.wire.connection import CHUNK, ClosedError
from ddlrun.wire.frames import Agreement, FrameError
from ddlrun.wire.listening import MOST_UNAUTHENTICATED, Acceptor, AcceptorEvents
from ddlrun.wire.loop import Loop


class KeeperEvents(NamedTuple):
    """The functions that are called for events of connections."""

    message: Callable[[KeeperConnection, bytes, bytes], None]
    """A keeper sends a message: kind and text. May raise FrameError."""
    hang_up: Callable[[KeeperConnection], None]
    """A keeper has closed its connection."""
    violation: Callable[[KeeperConnection, str], None]
    """The connection of a keeper was dropped, as it carried something other than its messages."""
    unproven: Callable[[int, str], None]
    """The same, where a greeting of the keeper of a rank was not followed by the proof that it is not a copy."""
    too_many_files: Callable[[], None]
    """No more files can be open."""


class Keepers(AcceptorEvents):
    """All connections, by file descriptor."""

    def __init__(self, listener: Listener, loop: Loop, events: KeeperEvents, *, ranks: int = 0) -> None:
        """Accept connections in a loop, of up to `ranks` ranks at once."""
        self._loop, self._events = loop, events
        most = max(MOST_UNAUTHENTICATED, ranks)
        self._acceptor = Acceptor(loop, listener.sockets, listener.secret, self, protocol.CLAIM_BYTES, most=most)
        self.peers: dict[int, KeeperConnection] = {}
        self.reading = True
        """Whether the ranks' output is read; otherwise the ranks that write any block."""

    def send_all(self, kind: bytes, text: str = "") -> None:
        """Send a message to all keepers."""
        for peer in self.peers.values():
            peer.send(kind, text.encode())

    @property
    def watchers(self) -> list[KeeperConnection]:
        """The processes that watch the process manager's daemons, whose keepers have left."""
        return [peer for peer in self.peers.values() if peer.watching]

    @property
    def remaining(self) -> list[KeeperConnection]:
        """The keepers that have not left."""
        return [peer for peer in self.peers.values() if not peer.watching]

    @property
    def arriving(self) -> bool:
        """Whether a keeper is connecting, or has not named its rank yet. ddlrun may be late to read what it sent."""
        return self._acceptor.greeted or any(peer.rank is None for peer in self.peers.values())

    def send_signal(self, number: int, reached: Container[int] = frozenset()) -> None:
        """Send a signal to the programs of all ranks that it has not reached."""
        for peer in self.peers.values():
            if peer.rank is not None and peer.rank not in reached:
                peer.send(protocol.SIGNAL, str(number).encode())

    def read(self, now: float, *, reading: bool) -> None:
        """Read output from now on, or pause each keeper at its next output."""
        self.reading = reading
        for peer in [peer for peer in self.peers.values() if reading and not peer.reading]:
            peer.heard_at = now
            peer.pause(reading=True)

    def drop_silent(self, limit: float) -> dict[KeeperConnection, bool]:
        """Drop the keepers without a message since a time, but those that are paused.

        Returns each with True if its host had acknowledged all that was sent.
        """
        peers = [peer for peer in self.peers.values() if peer.reading and peer.heard_at < limit]
        silent = {peer: peer.acknowledged for peer in peers}
        for peer in peers:
            self._drop(peer)
        return silent

    def stop_listening(self) -> None:
        """Accept no more connections, as all keepers have connected."""
        self._acceptor.close()

    def close(self) -> None:
        """Close all connections."""
        self._acceptor.close()
        for peer in self.peers.values():
            peer.close()

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Read the messages of a keeper from now on."""
        peer = self.peers[link.fileno()] = KeeperConnection(link, agreement, time.monotonic())
        peer.join(self._loop, partial(self._receive, peer))

    def on_failure(self, claim: bytes, error: OSError | HandshakeError) -> None:
        """Report a connection whose greeting was right, and what followed was not."""
        if isinstance(error, HandshakeError):
            self._events.unproven(protocol.parse_claim(claim), str(error))

    def on_full(self, _error: OSError) -> None:
        """Report that no more files can be open."""
        self._events.too_many_files()

    def _receive(self, peer: KeeperConnection) -> None:
        try:
            data = peer.read(CHUNK)
        except OSError as error:
            peer.error = None if isinstance(error, ClosedError) else error.errno
            self._drop(peer)
            self._events.hang_up(peer)
            return
        now = time.monotonic()
        if len(data) >= protocol.PART:
            peer.heard_at = now
        try:
            for kind, text in peer.feed(data):
                peer.heard_at = now
                self._events.message(peer, kind, text)
                if kind in protocol.OUTPUT and not self.reading:
                    peer.pause(reading=False)
        except FrameError as error:
            self._drop(peer)
            self._events.violation(peer, str(error))

    def _drop(self, peer: KeeperConnection) -> None:
        del self.peers[peer.fileno()]
        peer.close()
