"""The connections of the ranks' keepers: who may speak, what was heard from whom, what is still to be sent."""

import _socket  # socket itself takes 6 ms to import
import errno
import hmac
import select
import time
from collections.abc import Callable
from itertools import islice

from ddlrun.rank import protocol
from ddlrun.supervise.listener import Listener

CHUNK = 1 << 18
# Who connects has this long, and may send this much, before it has said the token.
STRANGER_SECONDS = 10.0
MOST_OF_A_STRANGER = 64
MOST_STRANGERS = 256


class KeeperConnection:
    """One keeper's connection, or one that has not said the token yet (rank None)."""

    def __init__(self, link: _socket.socket, now: float) -> None:
        self.link = link
        self.rank: int | None = None
        self.host = "?"
        self.local_rank = -1
        self.trusted = False
        self.got = 0
        self.since = self.heard = self.printed = now
        self.ever_printed = False
        self.stalled = False
        self.unpack = protocol.Unpacker()
        self.unsent = bytearray()
        self.ended: protocol.ProgramEnd | None = None

    @property
    def running(self) -> bool:
        """Whether its rank has begun and not ended."""
        return self.rank is not None and self.ended is None


class Keepers:
    """All connections, by file descriptor; `hear` gets each message of those that said the token.

    `hung_up` gets those that close by themselves, `crowded` is called when no more files can be open. `ranks`: so
    many may come at once.
    """

    def __init__(
        self,
        listener: Listener,
        epoll: select.epoll,
        hear: Callable[[KeeperConnection, bytes, bytes], None],
        hung_up: Callable[[KeeperConnection], None],
        crowded: Callable[[], None],
        ranks: int = 0,
    ) -> None:
        self._listener, self._epoll = listener, epoll
        self._hear, self._hung_up, self._crowded = hear, hung_up, crowded
        self._most_strangers = max(MOST_STRANGERS, ranks)
        self.peers: dict[int, KeeperConnection] = {}
        self._strangers: dict[int, KeeperConnection] = {}
        self.reading = True
        """Whether ranks are read; else they wait until what they wrote is taken."""
        epoll.register(listener.socket.fileno(), select.EPOLLIN)

    def event(self, fd: int, event: int) -> None:
        """Do what can be done on a descriptor now; nothing where it is none of these."""
        if fd == self._listener.socket.fileno():
            self._accept()
        elif fd in self.peers:
            peer = self.peers[fd]
            if event & select.EPOLLOUT:
                self._flush(peer)
            if event & ~select.EPOLLOUT and fd in self.peers:
                self._receive(peer)

    def send(self, peer: KeeperConnection, kind: bytes, text: str = "") -> None:
        """Send a message, as soon as the other side takes it."""
        peer.unsent += protocol.pack(kind, text.encode())
        self._flush(peer)

    def send_all(self, kind: bytes, text: str = "") -> None:
        """Send a message to all that said the token."""
        for peer in list(self.peers.values()):
            if peer.trusted:
                self.send(peer, kind, text)

    def read(self, now: float, *, reading: bool) -> None:
        """Read from the ranks from now on, or let them wait."""
        if reading != self.reading:
            self.reading = reading
            for peer in self.peers.values():
                peer.heard = now
                self._listen_to(peer)

    def drop_silent(self, limit: float) -> list[KeeperConnection]:
        """Drop and return those that said nothing since `limit`."""
        silent = [peer for peer in self.peers.values() if peer.trusted and peer.heard < limit]
        for peer in silent:
            self._drop(peer)
        return silent

    def drop_slow_strangers(self, now: float) -> None:
        """Drop those that had time enough to say the token."""
        for peer in [peer for peer in self._strangers.values() if now > peer.since + STRANGER_SECONDS]:
            self._drop(peer)

    def stop_listening(self) -> None:
        """Let nobody else in."""
        self._drop_strangers(0)
        self._epoll.unregister(self._listener.socket.fileno())
        self._listener.socket.close()

    def close(self) -> None:
        """Close all connections."""
        for peer in self.peers.values():
            peer.link.close()

    def _accept(self) -> None:
        while True:
            try:
                fd, _ = self._listener.socket._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as socket.accept does
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_strangers(0):
                    self._crowded()
                return
            link = _socket.socket(fileno=fd)
            link.setblocking(False)
            link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self.peers[fd] = self._strangers[fd] = KeeperConnection(link, time.monotonic())
            self._epoll.register(fd, select.EPOLLIN)
            self._drop_strangers(self._most_strangers)

    def _drop_strangers(self, most: int) -> bool:
        """Keep so many who have not said the token yet, the newest; tell whether any was dropped.

        A job's keepers come all at once: those whose token is there already are heard first.
        """
        old = list(islice(self._strangers.items(), max(0, len(self._strangers) - most)))
        for fd, peer in old:
            if self._strangers.get(fd) is peer:  # hearing one may have ended the listening
                self._receive(peer)
        left = [peer for fd, peer in old if self._strangers.get(fd) is peer]
        for peer in left:
            self._drop(peer)
        return bool(left)

    def _receive(self, peer: KeeperConnection) -> None:
        try:
            data = peer.link.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            self._hung_up(peer)
            return
        peer.heard = time.monotonic()
        peer.got += len(data)
        if not peer.trusted and peer.got > MOST_OF_A_STRANGER:
            self._drop(peer)
            return
        for kind, text in peer.unpack.feed(data):
            if not peer.trusted and not self._trust(peer, kind, text):
                self._drop(peer)
                return
            self._hear(peer, kind, text)

    def _trust(self, peer: KeeperConnection, kind: bytes, text: bytes) -> bool:
        peer.trusted = kind == protocol.HELLO and hmac.compare_digest(text, self._listener.token.encode())
        if peer.trusted:
            del self._strangers[peer.link.fileno()]
            self.send(peer, protocol.WELCOME)
        return peer.trusted

    def _drop(self, peer: KeeperConnection) -> None:
        self._epoll.unregister(peer.link.fileno())
        del self.peers[peer.link.fileno()]
        self._strangers.pop(peer.link.fileno(), None)
        peer.link.close()

    def _flush(self, peer: KeeperConnection) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.link.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # it is gone: reading will tell
        self._listen_to(peer)

    def _listen_to(self, peer: KeeperConnection) -> None:
        events = (select.EPOLLIN if self.reading or peer.rank is None else 0) | (select.EPOLLOUT if peer.unsent else 0)
        self._epoll.modify(peer.link.fileno(), events)
