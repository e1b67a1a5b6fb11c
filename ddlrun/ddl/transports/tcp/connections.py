"""The connections of a rank to others, each made when it is first needed.

Of two ranks the lower one connects. If the higher one needs a connection first, it knocks: it connects for no other
purpose than to let the lower one connect, and to learn if that has ended. Further connections to the same rank on
another host, for networks that limit the rate of each, are made by the lower one, too; the higher one requests them
over the first.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ddlrun.ddl.transports.tcp.connection import PeerConnection
from ddlrun.ddl.transports.tcp.loans import OwnMemory
from ddlrun.ddl.transports.tcp.message import Mailbox
from ddlrun.ddl.transports.tcp.own_host import TooManyFilesError, begin_to_connect, raise_file_limit, set_options
from ddlrun.ddl.transports.tcp.protocol import CLAIM, CONNECT, EXCHANGE, KNOCK, LOST, Claim
from ddlrun.errors import LostRankError
from ddlrun.wire.authentication import HandshakeError, connect_as
from ddlrun.wire.connection import ClosedError, HandshakeProgress
from ddlrun.wire.listening import MOST_UNAUTHENTICATED, Acceptor, AcceptorEvents
from ddlrun.wire.loop import READ, WRITE

if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Mapping

    from ddlrun.ddl.transports.tcp.address_exchange import Membership
    from ddlrun.ddl.transports.tcp.connection import Handler
    from ddlrun.wire.authentication import Secret
    from ddlrun.wire.frames import Agreement, FrameError
    from ddlrun.wire.loop import Loop

# Attempts to connect to a peer that closes the connection during the handshake.
MOST_ATTEMPTS = 5


class RankAddress(NamedTuple):
    """The address at which a rank listens, and the name of its host, which all ranks of the host have in common."""

    address: str
    port: int
    host: str


class ConnectionEvents(Protocol):
    """What connections cause."""

    @property
    def handlers(self) -> Mapping[bytes, Handler]:
        """The handlers of frames that consist of a number."""

    def check_open(self) -> None:
        """Raise the error of a rank whose connections are closed."""

    def read(self, connection: PeerConnection) -> None:
        """Receive what has come."""

    def end(self, connection: PeerConnection, error: OSError | FrameError) -> None:
        """End a connection that cannot be made."""

    def stop(self, error: Exception) -> None:
        """End the job on this rank."""


class Connections(AcceptorEvents):
    """Makes the connections of a rank of a job, and keeps them."""

    def __init__(
        self,
        loop: Loop,
        job: Membership,
        listener: socket.socket,
        secret: Secret,
        address_of: Callable[[int], RankAddress],
        events: ConnectionEvents,
    ) -> None:
        """Accept connections from now on."""
        self._loop, self._job, self._secret, self._address_of, self._events = loop, job, secret, address_of, events
        self.memory = OwnMemory(secret, job.rank)
        self.lost: int | None = None
        """The lost rank that is reported to the others."""
        self._host = address_of(job.rank).host
        self._connections: dict[tuple[int, int], PeerConnection] = {}
        """The connections by peer and number (lane), from 0."""
        self._links: dict[tuple[int, int], _socket.socket] = {}
        """The sockets that this rank connects, until their connections use them; those of knocks, until these end."""
        self._guests: set[_socket.socket] = set()
        """The knocks of higher ranks."""
        self._handlers = {**events.handlers, CONNECT: self._on_request}
        self._attempts = Counter[tuple[int, int]]()
        most = MOST_UNAUTHENTICATED + job.size
        self._acceptor = Acceptor(loop, [listener], secret, self, CLAIM.size, most=most)

    def get(self, peer: int, lane: int = 0) -> PeerConnection:
        """Return a connection, which is made if it is needed first. All messages to a peer on this host share one."""
        if lane and self._is_local(peer):
            lane = 0
        connection = self._connections.get((peer, lane))
        if connection is None:
            self._events.check_open()
            connection = self._add(peer, lane)
            if lane and self._job.rank > peer:
                self._connections[peer, 0].send_number(CONNECT, lane)
            else:
                self._connect(peer, lane)
        return connection

    def all(self) -> list[PeerConnection]:
        """Return all connections that were needed so far."""
        return list(self._connections.values())

    def all_to(self, peer: int) -> list[PeerConnection]:
        """Return all connections to a peer."""
        return [connection for connection in self._connections.values() if connection.peer == peer]

    def close(self) -> None:
        """Close all sockets, and forget the connections."""
        self._acceptor.close()
        for link in (*self._links.values(), *self._guests):
            self._close(link)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _is_local(self, peer: int) -> bool:
        return self._address_of(peer).host == self._host

    def _add(self, peer: int, lane: int) -> PeerConnection:
        first = self.get(peer) if lane else None
        mailbox = Mailbox(self._job.number(peer)) if first is None else first.mailbox
        connection = PeerConnection(peer, mailbox, self.memory, self._handlers)
        self._connections[peer, lane] = connection
        if first is not None:
            connection.ended = first.ended
        elif self.lost is not None:
            connection.send_number(LOST, self.lost)
        return connection

    def _connect(self, peer: int, lane: int) -> None:
        """Begin to connect to a higher rank, or to knock at a lower one."""
        address = self._address_of(peer)
        try:
            link = begin_to_connect(address.address, address.port)
        except TooManyFilesError as error:
            self._events.stop(LostRankError(f"{self._job}: {error.strerror}"))
        except OSError as error:
            self._events.end(self._connections[peer, lane], error)
        else:
            self._links[peer, lane] = link
            self._loop.watch(link.fileno(), WRITE, lambda _events: self._greet(peer, lane, link))

    def _greet(self, peer: int, lane: int, link: _socket.socket) -> None:
        """Begin the handshake of a connection that is made, or has failed."""
        claim = Claim(KNOCK if peer < self._job.rank else lane, self._job.rank, peer)
        code = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(peer, lane, OSError(code, os.strerror(code)))
            return
        try:
            progress = HandshakeProgress(link, connect_as(self._secret, claim.pack()))
        except OSError as error:
            self._fail(peer, lane, error)
        else:
            self._loop.watch(link.fileno(), READ, lambda _events: self._advance(peer, lane, progress))

    def _advance(self, peer: int, lane: int, progress: HandshakeProgress) -> None:
        try:
            is_over = progress.advance() is not None
        except (OSError, HandshakeError) as error:
            self._fail(peer, lane, error)
            return
        if is_over and peer > self._job.rank:
            self._use(peer, lane, self._links.pop((peer, lane)))
        elif is_over:  # the knock ends once the peer has connected
            link = self._links[peer, lane]
            self._loop.watch(link.fileno(), READ, lambda _events: self._fail(peer, lane, ClosedError()))

    def _use(self, peer: int, lane: int, link: _socket.socket) -> None:
        """Use a socket whose ends have authenticated each other."""
        if (peer, lane) in self._links:  # this rank's knock
            self._close(self._links.pop((peer, lane)))
        connection = self._connections.get((peer, lane)) or self._add(peer, lane)
        set_options(link)
        self._loop.forget(link.fileno())
        connection.connect(link)
        connection.join(self._loop, partial(self._events.read, connection))
        if self._job.rank < peer and not lane and self._is_local(peer):
            connection.loans.offer()

    def _fail(self, peer: int, lane: int, error: OSError | HandshakeError) -> None:
        """Handle the failure of a connection that this rank began, or the end of a knock.

        A live peer closes the connection if this rank does not know the secret, and may do so if too many connect. The
        port of one that has ended is closed.
        """
        if isinstance(error, OSError) and error.errno is None:  # it is of a signal handler
            raise error
        self._close(self._links.pop((peer, lane)))
        self._attempts[peer, lane] += 1
        is_closed = isinstance(error, (ConnectionResetError, ClosedError))
        if is_closed and self._attempts[peer, lane] < MOST_ATTEMPTS:
            self._connect(peer, lane)
        else:
            refusal = HandshakeError("it refuses this rank")
            self._events.end(self._connections[peer, lane], refusal if is_closed else error)

    # -- of the acceptor ---------------------------------------------------------------------------

    def check(self, claim: bytes) -> None:
        """Refuse a claim that is not of another rank of this job to this one."""
        purpose, sender, receiver = Claim.parse(claim)
        if receiver != self._job.rank or sender == receiver or sender >= self._job.size or purpose == EXCHANGE:
            raise HandshakeError("it looks for another rank")

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Use a connection of a lower rank, or connect to a higher one that knocks."""
        purpose, peer, _ = Claim.parse(agreement.claim)
        if purpose != KNOCK:
            self._use(peer, purpose, link)
            return
        self._guests.add(link)
        self._loop.watch(link.fileno(), READ, lambda _events: self._close(link))
        self.get(peer)

    def on_full(self, error: OSError) -> None:
        """Raise the limit of open files, or accept no more connections."""
        try:
            raise_file_limit(error)
        except TooManyFilesError as problem:
            self._acceptor.close()  # or it would report the same connection indefinitely
            self._events.stop(LostRankError(f"{self._job}: {problem.strerror}"))

    def _on_request(self, connection: PeerConnection, lane: int) -> None:
        self.get(connection.peer, lane)

    def _close(self, link: _socket.socket) -> None:
        self._guests.discard(link)
        self._loop.forget(link.fileno())
        link.close()
