"""New connections, and the limits of those whose other end has not proved to know the secret."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import errno
import time
from itertools import islice

from ddlrun.wire.authentication import HandshakeError, accept_at
from ddlrun.wire.connection import HandshakeProgress
from ddlrun.wire.loop import NEVER, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.wire.authentication import Secret
    from ddlrun.wire.frames import Agreement
    from ddlrun.wire.loop import Loop

# Limits of unauthenticated connections: seconds, and their number.
HANDSHAKE_SECONDS, MOST_UNAUTHENTICATED = 10.0, 256


class NewConnection:
    """A connection whose handshake is in progress; `claim`: that of its greeting; None: it is unauthenticated."""

    __slots__ = ("_acceptor", "claim", "link", "progress", "since")

    def __init__(self, link: _socket.socket, acceptor: Acceptor, secret: Secret, claim_bytes: int) -> None:
        self.link, self._acceptor, self.since = link, acceptor, time.monotonic()
        self.claim: bytes | None = None
        self.progress = HandshakeProgress(link, accept_at(secret, claim_bytes, self._check))

    def on_events(self, _events: int) -> None:
        """Go on with the handshake."""
        self._acceptor.advance(self)

    def _check(self, nonce: bytes, claim: bytes) -> None:
        self._acceptor.check(nonce, claim)
        self.claim = claim


class Acceptor:
    """Accepts connections, and returns those whose other ends prove to know the secret.

    The number of unauthenticated connections is limited: a new one displaces the oldest. One that has sent a greeting
    of its own is none of them, but has no more time from then on than they have.
    """

    def __init__(
        self,
        loop: Loop,
        listeners: Sequence[_socket.socket],
        secret: Secret,
        events: AcceptorEvents,
        claim_bytes: int = 0,
        *,
        most: int = MOST_UNAUTHENTICATED,
        seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Accept connections of listening sockets from now on.

        Args:
            loop: The loop.
            listeners: The sockets, which this object closes.
            secret: The secret.
            events: What to call.
            claim_bytes: The length of a claim.
            most: The number of unauthenticated connections.
            seconds: The time of a handshake.
        """
        self._loop, self._listeners, self._secret, self._events = loop, listeners, secret, events
        self._claim_bytes, self._most, self._seconds = claim_bytes, most, seconds
        self._unauthenticated: dict[int, NewConnection] = {}
        """New connections by descriptor, the oldest first."""
        self._greeted: dict[int, NewConnection] = {}
        """Those that have sent a greeting of their own."""
        self._nonces: set[bytes] = set()
        """The nonces of all greetings: a copy of a greeting is not one."""
        for listener in listeners:
            listener.setblocking(False)
            loop.watch(listener.fileno(), READ, lambda _events, listener=listener: self._accept(listener))  # type: ignore[misc]

    def close(self) -> None:
        """Accept no more connections, and drop the new ones. A second call does nothing."""
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
            listener.close()
        self._listeners = ()
        for new in [*self._unauthenticated.values(), *self._greeted.values()]:
            self._drop(new)

    @property
    def greeted(self) -> bool:
        """Whether the handshake of a connection with a greeting of its own is in progress."""
        return bool(self._greeted)

    def _accept(self, listener: _socket.socket) -> None:
        while self._listeners:
            try:
                fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as socket.accept does
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno is None:  # it is of a signal handler
                    raise
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_unauthenticated(0):
                    self._events.on_full(error)
                return
            self._begin(_socket.socket(fileno=fd), fd)

    def _begin(self, link: _socket.socket, fd: int) -> None:
        link.setblocking(False)
        link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        new = self._unauthenticated[fd] = NewConnection(link, self, self._secret, self._claim_bytes)
        self._loop.watch(fd, READ, new.on_events)
        self._loop.watch_deadline(self._deadline, self._drop_overdue)
        self.advance(new)  # its greeting may be here already
        self._drop_unauthenticated(self._most)

    def check(self, nonce: bytes, claim: bytes) -> None:
        """Check a greeting whose code is right. Raises HandshakeError where it is not welcome."""
        if nonce in self._nonces:
            raise HandshakeError("this greeting is a copy")
        self._events.check(claim)
        self._nonces.add(nonce)

    def advance(self, new: NewConnection) -> None:
        """Go on with a handshake."""
        fd = new.link.fileno()
        try:
            agreement = new.progress.advance()
        except (OSError, HandshakeError) as error:
            if isinstance(error, OSError) and error.errno is None:
                raise
            self._drop(new)
            if new.claim is not None:
                self._events.on_failure(new.claim, error)
            return
        if new.claim is not None and fd in self._unauthenticated:
            new.since = time.monotonic()
            self._greeted[fd] = self._unauthenticated.pop(fd)
        if agreement is not None:
            self._forget(new)
            self._events.on_connection(new.link, agreement)

    def _drop_unauthenticated(self, most: int) -> bool:
        """Drop all unauthenticated connections but the `most` newest ones; return True if any was dropped.

        Many clients may connect at once: those whose greeting has arrived are authenticated first.
        """
        count = max(0, len(self._unauthenticated) - most)
        return self._drop_unless_advanced(self._unauthenticated, list(islice(self._unauthenticated.values(), count)))

    def _drop_unless_advanced(self, group: dict[int, NewConnection], connections: Sequence[NewConnection]) -> bool:
        """Read what has arrived on connections of a group, and drop those that stay in it; return True if any does.

        Reading may end the listening, and drop connections.
        """
        for new in connections:
            if group.get(new.link.fileno()) is new:
                self.advance(new)
        remaining = [new for new in connections if group.get(new.link.fileno()) is new]
        for new in remaining:
            self._drop(new)
        return bool(remaining)

    def _deadline(self) -> float:
        oldest = [next(iter(group.values())).since for group in (self._unauthenticated, self._greeted) if group]
        return min(oldest, default=NEVER) + self._seconds

    def _drop_overdue(self, now: float) -> None:
        """Drop connections that have taken too long, but not while this process did not read what they had sent."""
        for group in (self._unauthenticated, self._greeted):
            self._drop_unless_advanced(group, [new for new in group.values() if new.since + self._seconds <= now])

    def _drop(self, new: NewConnection) -> None:
        self._forget(new)
        new.link.close()

    def _forget(self, new: NewConnection) -> None:
        self._loop.forget(new.link.fileno())
        if self._unauthenticated.pop(new.link.fileno(), None) is None:
            del self._greeted[new.link.fileno()]
        if not self._unauthenticated and not self._greeted:
            self._loop.forget_deadline(self._deadline)


class AcceptorEvents:
    """What happens to an acceptor's connections. A user overrides what it needs."""

    def check(self, claim: bytes) -> None:
        """Check the claim of a greeting. Raises HandshakeError where it is not welcome."""

    def on_connection(self, link: _socket.socket, agreement: Agreement) -> None:
        """Take over the socket of a connection that is authenticated."""
        raise NotImplementedError

    def on_failure(self, claim: bytes, error: OSError | HandshakeError) -> None:
        """React to the end of a connection after its greeting, which is not a copy, and before its confirmation."""

    def on_full(self, error: OSError) -> None:
        """React to the limit of open files, where no unauthenticated connection is left that could be dropped."""
        raise error
