"""The endpoint of a rank: its connections to the others, and one loop that moves their messages."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ddlrun.ddl.transports.communicators import WrongLengthError
from ddlrun.ddl.transports.interruption import explain_interruption
from ddlrun.ddl.transports.tcp.connections import Connections
from ddlrun.ddl.transports.tcp.protocol import LOST, QUESTION, REPLY
from ddlrun.errors import DdlrunError, LostRankError
from ddlrun.wire.authentication import HandshakeError
from ddlrun.wire.connection import ClosedError
from ddlrun.wire.frames import FrameError
from ddlrun.wire.loop import Loop

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from ddlrun.ddl.transports.tcp.address_exchange import Membership
    from ddlrun.ddl.transports.tcp.connection import PeerConnection
    from ddlrun.ddl.transports.tcp.connections import RankAddress
    from ddlrun.ddl.transports.tcp.message import Completion
    from ddlrun.wire.authentication import Secret

# Seconds for the last messages to others, which report a lost rank.
LINGER = 2.0


class Endpoint:
    """The connections of a rank of a job. All ranks create it; `address_of(peer)` returns the address of another one.

    It may be used by one thread at a time, but for `wake`.
    """

    def __init__(
        self, job: Membership, listener: socket.socket, secret: Secret, address_of: Callable[[int], RankAddress]
    ) -> None:
        self.rank, self.size, self.address_of = job.rank, job.size, address_of
        self.job = job
        self.progress = ProgressReports()
        self.until = math.inf
        """The time (time.monotonic) from which on `poll` raises TimeoutError."""
        self._loop = Loop()
        self.wake = self._loop.wake
        self.handlers = {LOST: self._on_lost, QUESTION: self.progress.reply, REPLY: self.progress.note}
        self.connections = Connections(self._loop, job, listener, secret, address_of, self)
        self._failure: Exception | None = None
        os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))

    def post_receive(self, peer: int, group: int, tag: int, completion: Completion) -> None:
        """Receive the next message of a peer with this group and tag; it counts as open unless it is here already."""
        try:
            connection = self.connections.get(peer)
            try:
                connection.post_receive(group, tag, completion)
            except OSError as error:
                self.end(connection, error)
            if connection.ended:
                self._check(connection)
        except BaseException as error:
            self._break_off(error)
            raise

    def post_send(
        self, peer: int, group: int, tag: int, data: memoryview, completion: Completion, lane: int | None = None
    ) -> None:
        """Send a message to a peer; it counts as open unless the kernel takes all of it at once.

        With a lane, it goes over the connection of this number to a peer on another host. A peer on this host may copy
        a long message from this rank's memory; it then stays open until the peer has posted its buffer. Without a lane,
        it goes over the first connection, and is not copied from memory.
        """
        try:
            connection = self.connections.get(peer, lane or 0)
            if lane is None or not connection.loans.lend(group, tag, data, completion):
                connection.post_send(group, tag, data, completion)
            if connection.ended:
                self._check(connection)
        except BaseException as error:
            self._break_off(error)
            raise

    def poll(self, seconds: float) -> bool:
        """Move messages; wait up to `seconds` for the first. Return False if nothing has happened in that time.

        Raises:
            LostRankError: A rank has ended or is unreachable, and a message from or to it is awaited.
            WrongLengthError: A message differs in length from its buffer.
            TimeoutError: It is later than `until`.
        """
        if self.until < math.inf:
            seconds = min(seconds, self.until - time.monotonic())
        try:
            moved = self._failure is not None or self.serve(seconds)
        except BaseException as error:
            self._break_off(error)
            raise
        if self._failure is not None:
            self._raise_failure()
        if self.until < math.inf and self.until <= time.monotonic():
            raise TimeoutError
        return moved

    def awaited(self) -> list[int]:
        """Return the ranks from or to which a message is not complete."""
        return sorted({connection.peer for connection in self.connections.all() if connection.awaited})

    def ask_progress(self, peers: Iterable[int]) -> None:
        """Request the progress of peers, whose replies `poll` receives."""
        for peer in peers:
            self.connections.get(peer).send_number(QUESTION, self.progress.own)

    def find_sources(self, group: int, tag: int) -> list[int]:
        """Return the ranks whose next message with a group and tag arrives, or is here, without a buffer."""
        return sorted({item.peer for item in self.connections.all() if (group, tag) in item.mailbox.early})

    def give_up(self) -> None:
        """Let the memory of open messages change from now on."""
        for connection in self.connections.all():
            connection.copy_unsent()
        self.connections.memory.revoke()

    def stop(self, error: Exception, lost: int | None = None) -> None:
        """Raise this error from every later `poll`; report a lost rank, by default this one, to the others."""
        if self._failure is None:
            self._failure = error
            self.connections.lost = self.rank if lost is None else lost
            self.give_up()
            for connection in self.connections.all():
                connection.send_number(LOST, self.connections.lost)

    def abandon(self, error: LostRankError) -> None:
        """Close all sockets and send nothing more: an interrupted call may have left half a message.

        From now on all calls raise this error, or the one that they raised before. If it is interrupted itself, a
        second call does the rest.
        """
        self._failure = self._failure or error
        self.close_files()
        self.give_up()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._loop.closed

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        if self.closed:
            return
        until = time.monotonic() + LINGER
        self.give_up()
        while any(map(self._lingers, self.connections.all())) and (left := until - time.monotonic()) > 0:
            self._loop.wait(left)
        for connection in self.connections.all():
            if connection.is_usable:
                with suppress(OSError, FrameError, WrongLengthError):
                    connection.move()  # unread bytes would let the kernel discard what is still to be sent
        self.close_files()

    def _lingers(self, connection: PeerConnection) -> bool:
        """Return True if the peer has still to receive messages, such as the report of a loss."""
        if connection.is_connected:
            return connection.unsent > 0
        return self.connections.lost is not None and not connection.ended

    def close_files(self) -> None:
        """Close all sockets; in a child process, the parent goes on to use them: so the loop is closed first."""
        self._loop.close()
        self.connections.close()

    def serve(self, seconds: float) -> bool:
        """Handle events, also after a failure; return False if there were none in that time."""
        until = time.monotonic() + seconds
        while not self._loop.wait(seconds):
            seconds = until - time.monotonic()
            if seconds <= 0:
                return False
        return True

    def check_open(self) -> None:
        """Raise the error of a rank whose connections are closed."""
        if self.closed:
            self._failure = self._failure or LostRankError(f"{self.job}: this rank has closed its connections")
            self._raise_failure()

    def read(self, connection: PeerConnection) -> None:
        """Receive what has come."""
        try:
            if not connection.reading:
                raise ClosedError
            connection.move()
        except (OSError, FrameError) as error:
            self.end(connection, error)
        except WrongLengthError as error:
            connection.pause(reading=False)
            self.stop(error)

    def _on_lost(self, connection: PeerConnection, lost: int) -> None:
        """Fail, as the peer reports a rank as lost, which is the peer itself after an error of its own."""
        reporter = self.job.number(connection.peer)
        self._fail(lost, "it reports an error of its own" if lost == connection.peer else f"as rank {reporter} reports")

    # -- failures ----------------------------------------------------------------------------------

    def end(self, connection: PeerConnection, error: OSError | FrameError) -> None:
        """Close a connection that has ended; after an error, close all connections to the peer.

        Once all of them have ended, that is a failure if a message is awaited, now or later.
        """
        if isinstance(error, OSError) and error.errno is None:  # it is of a signal handler
            raise error
        connections = self.connections.all_to(connection.peer)
        for item in (connection,) if isinstance(error, ClosedError) else connections:
            if item.is_usable:
                with suppress(OSError, FrameError, WrongLengthError):
                    item.move()  # its last message may report a lost rank
                item.close()
        connection.ended = _explain(error)
        if not any(item.is_usable for item in connections):
            for item in connections:
                item.ended = item.ended or connection.ended
        self._check(connection)

    def _check(self, connection: PeerConnection) -> None:
        """Fail if a message is awaited and all connections to the peer have ended."""
        connections = self.connections.all_to(connection.peer)
        if not any(item.is_usable for item in connections) and any(item.awaited for item in connections):
            self._fail(connection.peer, connection.ended)

    def _fail(self, lost: int, reason: str) -> None:
        self.stop(LostRankError(f"{self.job}: rank {self.job.number(lost)} is lost: {reason}"), lost)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _break_off(self, error: BaseException) -> None:
        """Handle an exception that ends a call. It interrupts the call if it may be that of a signal handler."""
        if isinstance(error, WrongLengthError):
            self.stop(error)
        elif not isinstance(error, DdlrunError) and threading.current_thread() is threading.main_thread():
            self.abandon(LostRankError(explain_interruption(str(self.job), error)))


class ProgressReports:
    """The number of collectives that this rank has begun, and those of the others as far as they have reported them."""

    def __init__(self) -> None:
        self.own = 0
        self.of: dict[int, int] = {}

    def forget_below(self, number: int) -> None:
        """Forget the reports of ranks that had begun fewer collectives, which may be outdated."""
        self.of = {peer: begun for peer, begun in self.of.items() if begun >= number}

    def reply(self, connection: PeerConnection, number: int) -> None:
        """Take the report of a peer, and reply to it."""
        self.note(connection, number)
        connection.send_number(REPLY, self.own)

    def note(self, connection: PeerConnection, number: int) -> None:
        """Take the report of a peer."""
        self.of[connection.peer] = number


def _explain(error: OSError | FrameError) -> str:
    """Return the reason why a connection has ended."""
    if isinstance(error, HandshakeError):
        return "it does not know the secret of the job"
    if isinstance(error, ConnectionError | ProcessLookupError):
        return "it has ended"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _close_in_child(ref: weakref.ref[Endpoint]) -> None:
    endpoint = ref()
    if endpoint is not None and not endpoint.closed:
        endpoint.close_files()
