"""The connections of a rank: those that it begins, and those that it accepts, until their handshakes are over.

Of two ranks the lower one connects. If the higher one needs a connection first, it knocks: it connects for no other
purpose than to let the lower one connect, and to learn if that has ended.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ddlrun.ddl.tcp.own_host import (
    TooManyFilesError,
    begin_to_connect,
    is_of_system,
    raise_error_of,
    raise_file_limit,
    set_options,
)
from ddlrun.ddl.tcp.protocol import CLAIM, EXCHANGE, KNOCK, Claim
from ddlrun.wire.authentication import HandshakeError, connect_as
from ddlrun.wire.connection import ClosedError
from ddlrun.wire.listening import MOST_UNAUTHENTICATED, Acceptor, AcceptorEvents, HandshakeProgress
from ddlrun.wire.loop import READ, WRITE

if TYPE_CHECKING:
    import _socket
    import socket
    from collections.abc import Callable

    from ddlrun.ddl.tcp.address_exchange import Membership
    from ddlrun.wire.authentication import Secret
    from ddlrun.wire.frames import Agreement
    from ddlrun.wire.loop import Loop

# Attempts to connect to a peer that closes the connection during the handshake.
MOST_ATTEMPTS = 5


class RankAddress(NamedTuple):
    """The address at which a rank listens, and the name of its host, which all ranks of the host have in common."""

    address: str
    port: int
    host: str


class ConnectorEvents(Protocol):
    """What becomes of connections."""

    def on_link(self, peer: int, lane: int, link: _socket.socket) -> None:
        """Use a connection for messages."""

    def on_knock(self, peer: int) -> None:
        """Connect to a higher rank."""

    def on_failure(self, peer: int, lane: int, error: OSError | HandshakeError) -> None:
        """React to a connection that cannot be made."""

    def on_too_many_files(self, error: TooManyFilesError) -> None:
        """React to a connection that was neither made nor refused."""


class Connector(AcceptorEvents):
    """Makes the connections of a rank of a job."""

    def __init__(
        self,
        loop: Loop,
        job: Membership,
        listener: socket.socket,
        secret: Secret,
        address_of: Callable[[int], RankAddress],
        events: ConnectorEvents,
    ) -> None:
        """Accept connections from now on."""
        self._loop, self._rank, self._size, self._secret = loop, job.rank, job.size, secret
        self._address_of, self._events = address_of, events
        self._links: dict[tuple[int, int], _socket.socket] = {}
        """Those that this rank has begun, by peer and number, until they are used; of knocks, until they end."""
        self._guests: set[_socket.socket] = set()
        """The knocks of higher ranks."""
        self._attempts = Counter[tuple[int, int]]()
        most = MOST_UNAUTHENTICATED + job.size
        self._acceptor = Acceptor(loop, [listener], secret, self, CLAIM.size, most=most)

    def connect(self, peer: int, lane: int) -> None:
        """Begin to connect to a peer; to a lower rank, only knock."""
        address = self._address_of(peer)
        try:
            link = begin_to_connect(address.address, address.port)
        except TooManyFilesError as error:
            self._events.on_too_many_files(error)
        except OSError as error:
            self._events.on_failure(peer, lane, error)
        else:
            self._links[peer, lane] = link
            self._loop.watch(link.fileno(), WRITE, lambda _events: self._greet(peer, lane))

    def forget(self, peer: int, lane: int) -> None:
        """End what this rank has begun to connect."""
        link = self._links.pop((peer, lane), None)
        if link is not None:
            self._close(link)

    def close(self) -> None:
        """Close all of these connections, and the listener."""
        self._acceptor.close()
        for link in (*self._links.values(), *self._guests):
            self._close(link)

    def _greet(self, peer: int, lane: int) -> None:
        """Begin the handshake of a connection that is made, or has failed."""
        link = self._links[peer, lane]
        claim = Claim(KNOCK if peer < self._rank else lane, self._rank, peer)
        try:
            raise_error_of(link)
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
        link = self._links[peer, lane]
        if is_over and peer > self._rank:
            del self._links[peer, lane]
            self._use(peer, lane, link)
        elif is_over:  # the knock ends once the peer has connected
            self._loop.watch(link.fileno(), READ, lambda _events: self._fail(peer, lane, ClosedError()))

    def _use(self, peer: int, lane: int, link: _socket.socket) -> None:
        set_options(link)
        self._loop.forget(link.fileno())
        self.forget(peer, lane)  # this rank's knock
        self._events.on_link(peer, lane, link)

    def _fail(self, peer: int, lane: int, error: OSError | HandshakeError) -> None:
        """Handle the failure of a connection that this rank began, or the end of a knock.

        A live peer closes the connection if this rank does not know the secret, and may do so if too many connect. The
        port of one that has ended is closed.
        """
        if isinstance(error, OSError) and not is_of_system(error):
            raise error
        self.forget(peer, lane)
        self._attempts[peer, lane] += 1
        is_closed = isinstance(error, (ConnectionResetError, ClosedError))
        if is_closed and self._attempts[peer, lane] < MOST_ATTEMPTS:
            self.connect(peer, lane)
        else:
            self._events.on_failure(peer, lane, HandshakeError("it refuses this rank") if is_closed else error)

    # -- of the acceptor ---------------------------------------------------------------------------

    def check(self, claim: bytes) -> None:
        """Refuse a claim that is not of another rank of this job to this one."""
        purpose, sender, receiver = Claim.parse(claim)
        if receiver != self._rank or sender == receiver or sender >= self._size or purpose == EXCHANGE:
            raise HandshakeError("it looks for another rank")

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Use a connection of a lower rank, or connect to a higher one that knocks."""
        purpose, peer, _ = Claim.parse(agreement.claim)
        if purpose != KNOCK:
            self._use(peer, purpose, link)
            return
        self._guests.add(link)
        self._loop.watch(link.fileno(), READ, lambda _events: self._leave(link))
        self._events.on_knock(peer)

    def on_full(self, error: OSError) -> None:
        """Raise the limit of open files, or accept no more connections."""
        try:
            raise_file_limit(error)
        except TooManyFilesError as problem:
            self._acceptor.close()  # or it would report the same connection indefinitely
            self._events.on_too_many_files(problem)

    def _leave(self, link: _socket.socket) -> None:
        self._guests.remove(link)
        self._close(link)

    def _close(self, link: _socket.socket) -> None:
        self._loop.forget(link.fileno())
        link.close()
