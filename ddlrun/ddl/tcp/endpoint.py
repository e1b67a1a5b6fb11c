"""The endpoint of a rank: its listening socket, its connections, and one loop that moves their messages.

A connection is made when it is first needed: of two ranks the lower one connects. If the higher one needs it first, it
knocks: it connects for no other purpose than to let the lower one connect, and to learn if that has ended. Further
connections to the same rank, for networks that limit the rate of each, are made in the same way; the higher rank
requests them over the first one.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.ddl.interruption import ExceptionHook, explain_interruption
from ddlrun.ddl.tcp.connection import CONNECT, LOST, OFFER, READABLE, Connection
from ddlrun.ddl.tcp.handshake import EXCHANGE, KNOCK, MESSAGES, HandshakeError, accept_at, connect_as
from ddlrun.ddl.tcp.own_host import TooManyFilesError, accept, is_of_system, open_socket, set_options
from ddlrun.ddl.tcp.peer_memory import OwnMemory, PeerMemory, make_digest
from ddlrun.ddl.tcp.poller import EDGE, MOST_UNAUTHENTICATED, READ, WRITE, Introduction, Poller
from ddlrun.ddl.tcp.progress_reports import ProgressReports
from ddlrun.ddl.transport import WrongLengthError
from ddlrun.errors import DdlrunError, LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ddlrun.ddl.tcp.address_exchange import Membership
    from ddlrun.ddl.tcp.handshake import Greeting
    from ddlrun.ddl.tcp.message import Completion

ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
# Seconds for the last messages to others, which report a lost rank.
LINGER = 2.0
# Attempts to connect to a peer that closes the connection during the handshake.
MOST_ATTEMPTS = 5


class RankAddress(NamedTuple):
    """The address at which a rank listens, and the name of its host, which all ranks of the host have in common."""

    address: str
    port: int
    host: str


class Endpoint:
    """The connections of a rank of a job. All ranks create it; `address_of(peer)` returns the address of another one.

    It may be used by one thread at a time, but for `wake`.
    """

    def __init__(
        self, job: Membership, listener: socket.socket, secret: bytes, address_of: Callable[[int], RankAddress]
    ) -> None:
        self.rank, self.size, self.address_of = job.rank, job.size, address_of
        self.job = job
        self.progress = ProgressReports()
        self.until = math.inf
        """The time (time.monotonic) from which on `poll` raises TimeoutError."""
        self._listener, self._secret = listener, secret
        self._poller = Poller()
        self.wake = self._poller.wake
        self._connections: dict[tuple[int, int], Connection] = {}
        """The connections by peer and number, from 0."""
        self._knocks: dict[int, socket.socket] = {}
        self._hook = ExceptionHook(self._break_off)
        self._failure: Exception | None = None
        self._gave_up = False
        self._lost: int | None = None
        """The lost rank that is reported to the others."""
        self._host = address_of(self.rank).host
        self._memory: OwnMemory | None = None
        """The memory of this rank, once it is offered to a peer."""
        listener.setblocking(False)
        self._poller.watch(listener, READ, self._accept)
        os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))

    def post_receive(self, peer: int, group: int, tag: int, completion: Completion) -> None:
        """Receive the next message of a peer with this group and tag; it counts as open unless it is here already."""
        with self._hook:
            connection = self._connection(peer)
            try:
                connection.post_receive(group, tag, completion)
            except OSError as error:
                self._end(connection, error)
            if connection.ended:
                self._check(connection)

    def post_send(
        self, peer: int, group: int, tag: int, data: memoryview, completion: Completion | None, lane: int | None = None
    ) -> None:
        """Send a message to a peer; it counts as open unless the kernel takes all of it at once.

        With a lane, it goes over the connection of this number to a peer on another host. A peer on this host may copy
        a long message from this rank's memory; it then stays open until the peer has posted its buffer. Without a lane,
        it goes over the first connection, and is not copied from memory.
        """
        with self._hook:
            is_local = bool(lane) and self.address_of(peer).host == self._host
            connection = self._connection(peer, 0 if lane is None or is_local else lane)
            try:
                connection.send(group, tag, data, completion, lend=lane is not None)
            except OSError as error:
                connection.send_later(group, tag, data, completion)
                self._end(connection, error)
            if connection.ended:
                self._check(connection)

    def poll(self, seconds: float) -> bool:
        """Move messages; wait up to `seconds` for the first. Return False if nothing has happened in that time.

        Raises:
            LostRankError: A rank has ended or is unreachable, and a message from or to it is awaited.
            WrongLengthError: A message has another length than the buffer for it.
            TimeoutError: It is later than `until`.
        """
        left = self.until if self.until == math.inf else self.until - time.monotonic()
        with self._hook:
            moved = self._failure is not None or self._poller.poll(max(min(seconds, left), 0))
        self._raise_failure()
        if self.until < math.inf and self.until <= time.monotonic():
            raise TimeoutError
        return moved

    def awaited(self) -> list[int]:
        """Return the ranks from or to which a message is not complete."""
        return sorted({connection.peer for connection in self._connections.values() if connection.awaited})

    def ask_progress(self, peers: Iterable[int]) -> None:
        """Request the progress of peers, whose replies `poll` receives."""
        for peer in peers:
            with suppress(OSError):  # which `poll` finds, too
                self.progress.ask(self._connection(peer))

    def serve(self, seconds: float) -> None:
        """Reply to peers for up to some seconds, also after a failure."""
        self._poller.poll(seconds)

    def find_sources(self, group: int, tag: int) -> list[int]:
        """Return the ranks whose next message with a group and tag arrives, or is here, without a buffer."""
        return sorted({item.peer for item in self._connections.values() if item.has_early(group, tag)})

    def give_up(self) -> None:
        """Let the memory of open messages change from now on. A second call does nothing."""
        if self._gave_up:
            return
        self._gave_up = True
        for connection in self._connections.values():
            connection.keep_unsent()
        if self._memory is not None:
            self._memory.revoke()

    def stop(self, error: Exception) -> None:
        """Raise this error from every later `poll`; the other ranks report this one as lost."""
        if self._failure is None:
            self._failure = error
            self._report_lost(self.rank)

    def abandon(self, error: LostRankError) -> None:
        """Close all sockets and send nothing more: an interrupted call may have left half a message.

        From now on all calls raise this error, or the one that they raised before. If it is interrupted itself, a
        second call does the rest.
        """
        self._connections.clear()
        self._failure = self._failure or error
        self.give_up()
        self._poller.close()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._poller.closed

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        if self.closed:
            return
        until = time.monotonic() + LINGER
        self.give_up()
        if self._lost is not None:
            self._await_handshakes(until)
        for connection in self._connections.values():
            with suppress(OSError, WrongLengthError):
                connection.flush_all(until - time.monotonic())
                connection.read()  # unread bytes would let the kernel discard what is still to be sent
        self._poller.close()

    def _await_handshakes(self, until: float) -> None:
        """Wait, but not for long, until peers whose connections are being made can receive the report of a loss."""
        while any(connection.in_handshake for connection in self._connections.values()):
            left = until - time.monotonic()
            if left <= 0 or not self._poller.poll(left):
                return

    def close_files(self) -> None:
        """Close all sockets in a child process, whose parent goes on to use them."""
        self._poller.close()

    def _connection(self, peer: int, lane: int = 0) -> Connection:
        connection = self._connections.get((peer, lane))
        if connection is None:
            if self.closed:
                self._raise_failure()
            connection = self._add_connection(peer, lane)
            if self.rank < peer:
                self._connect(connection, EXCHANGE + lane if lane else MESSAGES)
            elif lane:
                with suppress(OSError):  # which ends the first connection, and with it this one
                    self._connections[peer, 0].send_control(CONNECT, lane)
            else:
                self._connect(connection, KNOCK)
        return connection

    def _add_connection(self, peer: int, lane: int) -> Connection:
        first = self._connection(peer) if lane else None
        connection = self._connections[peer, lane] = Connection(peer, first)
        connection.number = self.job.number(peer)
        if first is not None:
            connection.ended = first.ended
        elif self._lost is not None:
            connection.send_control(LOST, self._lost)
        return connection

    def _connect(self, connection: Connection, purpose: int) -> None:
        peer = connection.peer
        address = self.address_of(peer)
        try:
            file = open_socket(socket.AF_INET6 if ":" in address.address else socket.AF_INET)
        except TooManyFilesError as error:
            self.stop(LostRankError(f"{self.job}: {error.strerror}"))
            return
        except OSError as error:
            self._end(connection, error)
            return
        file.setblocking(False)
        code = file.connect_ex((address.address, address.port))
        if code not in {0, errno.EINPROGRESS}:
            file.close()
            self._end(connection, OSError(code, os.strerror(code)))
            return
        if purpose == KNOCK:
            self._knocks[peer] = file
        steps = connect_as(purpose, self.rank, peer, self._secret)
        Introduction(self._poller, file, steps, self._use, partial(self._not_connected, connection, purpose))

    def _accept(self, _mask: int) -> None:
        try:
            file = accept(self._listener)
        except TooManyFilesError as error:
            if not self._poller.drop_unauthenticated():
                self._poller.forget(self._listener)  # or it would report the same connection indefinitely
                self.stop(LostRankError(f"{self.job}: {error.strerror}"))
            return
        if file is not None:
            self._poller.limit(file, MOST_UNAUTHENTICATED + self.size)
            steps = accept_at(self.rank, self.size, self._secret)
            Introduction(self._poller, file, steps, self._use, lambda _error: None)

    def _use(self, file: socket.socket, greeting: Greeting) -> None:
        """Use a connection after its handshake."""
        peer = greeting.receiver if greeting.sender == self.rank else greeting.sender
        if greeting.purpose == KNOCK:
            self._poller.watch(file, READ, lambda _mask: self._poller.forget(file))
            if self.rank < peer:
                self._connection(peer)
            return
        self._poller.trust(file)
        lane = max(greeting.purpose - EXCHANGE, 0)
        connection = self._connections.get((peer, lane)) or self._add_connection(peer, lane)
        set_options(file)
        connection.socket = file
        if not lane and (knock := self._knocks.pop(peer, None)) is not None:
            self._poller.forget(knock)
        connection.watch = partial(self._poller.watch, file, handler=partial(self._move, connection))
        connection.watch(READ | EDGE)
        if self.rank < peer and not lane and self.address_of(peer).host == self._host:
            self._offer_memory(connection)
        self._move(connection, READ | WRITE | ENDED)

    def _offer_memory(self, connection: Connection) -> None:
        if self._memory is None:
            self._memory = OwnMemory(self._secret, self.rank)
        with suppress(OSError):  # which the next call finds, too
            connection.send_control(OFFER, self._memory.offer)

    def _take_offer(self, connection: Connection) -> None:
        """Use the memory of a peer, if it can be read, and offer this rank's in return. Raises OSError."""
        memory = PeerMemory(connection.offer)
        connection.offer = 0
        if memory.is_readable(make_digest(self._secret, connection.peer)):
            connection.memory = memory
            connection.send_control(READABLE, 0)
        if self.rank > connection.peer:
            self._offer_memory(connection)

    def _not_connected(self, connection: Connection, purpose: int, error: OSError | HandshakeError) -> None:
        """Handle the failure of a connection that this rank began, or the end of a knock.

        A live peer may have dropped the connection before it was authenticated; the port of an ended one is closed.
        """
        if connection.socket is not None:
            return
        connection.attempts += 1
        if isinstance(error, ConnectionResetError) and connection.attempts < MOST_ATTEMPTS:
            self._connect(connection, purpose)
        else:
            self._end(connection, error)

    def _move(self, connection: Connection, mask: int) -> None:
        """Send and receive what is possible."""
        try:
            if mask & WRITE:
                connection.flush()
            if mask & ~WRITE and not connection.read(to_end=mask & ENDED != 0):
                self._end(connection, None)
                return
            if connection.offer:
                self._take_offer(connection)
            while connection.requested:
                self._connection(connection.peer, connection.requested.popleft())
            if connection.reports:
                self.progress.handle(connection)
        except OSError as error:
            self._end(connection, error)
        except WrongLengthError as error:
            connection.is_readable = False
            self.stop(error)
        self._take_report(connection)

    def _end(self, connection: Connection, error: OSError | HandshakeError | None) -> None:
        """Close a connection that has ended; after an error, close all connections to the peer.

        Once all of them have ended, that is a failure if a message is awaited, now or later.
        """
        if isinstance(error, OSError) and not is_of_system(error):
            raise error
        connections = self._connections_to(connection.peer)
        for item in (connection,) if error is None else connections:
            self._close(item)
        connection.ended = _explain(error)
        if not any(item.socket is not None for item in connections):
            for item in connections:
                item.ended = item.ended or connection.ended
        self._check(connection)

    def _close(self, connection: Connection) -> None:
        if connection.socket is not None:
            with suppress(OSError, WrongLengthError):
                connection.read()  # its last message may report a lost rank
            self._poller.forget(connection.socket)
            connection.socket = None
        self._take_report(connection)

    def _take_report(self, connection: Connection) -> None:
        """Fail if the peer reports a rank as lost, which is the peer itself after an error of its own."""
        if connection.lost is not None:
            own = "it reports an error of its own"
            self._fail(
                connection.lost, own if connection.lost == connection.peer else f"as rank {connection.number} reports"
            )

    def _check(self, connection: Connection) -> None:
        """Fail if a message is awaited and all connections to the peer have ended."""
        connections = self._connections_to(connection.peer)
        is_open = any(item.socket is not None for item in connections)
        if not is_open and any(item.awaited for item in connections):
            self._fail(connection.peer, connection.ended)

    def _connections_to(self, peer: int) -> list[Connection]:
        return [connection for connection in self._connections.values() if connection.peer == peer]

    def _fail(self, lost: int, reason: str) -> None:
        """Raise an error from `poll` from now on, and report the lost rank to the others, which wait for this one."""
        if self._failure is None:
            self._failure = LostRankError(f"{self.job}: rank {self.job.number(lost)} is lost: {reason}")
            self._report_lost(lost)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _break_off(self, error: BaseException) -> None:
        """Handle an exception that ends a call. It interrupts the call if it may be that of a signal handler."""
        if isinstance(error, WrongLengthError):
            self.stop(error)
        elif not isinstance(error, DdlrunError) and threading.current_thread() is threading.main_thread():
            self.abandon(LostRankError(explain_interruption(str(self.job), error)))

    def _report_lost(self, lost: int) -> None:
        self._lost = lost
        self.give_up()
        for connection in self._connections.values():
            with suppress(OSError):
                connection.send_control(LOST, lost)


def _explain(error: OSError | HandshakeError | None) -> str:
    """Return the reason for which a connection has ended."""
    if isinstance(error, HandshakeError):
        return "it does not know the secret of the job"
    if error is None or isinstance(error, ConnectionError | ProcessLookupError):
        return "it has ended"
    return error.strerror or str(error)


def _close_in_child(ref: weakref.ref[Endpoint]) -> None:
    endpoint = ref()
    if endpoint is not None and not endpoint.closed:
        endpoint.close_files()
