"""A connection to another rank: messages of any number of groups, in both directions, without blocking."""

from __future__ import annotations

import errno
import socket
import struct
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from ddlrun.ddl.tcp.message import CODE, Incoming, Loan, seal, unseal
from ddlrun.ddl.tcp.peer_memory import RevokedMemoryError, address_of
from ddlrun.ddl.tcp.poller import EDGE, READ, WRITE
from ddlrun.ddl.transport import WrongLengthError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.tcp.message import Completion
    from ddlrun.ddl.tcp.peer_memory import PeerMemory

HEAD = struct.Struct("<QIQ")
"""The head of a message: its group, its tag and its bytes; a CRC follows. Group 0 is for messages between endpoints."""
HEAD_BYTES = HEAD.size + CODE.size
FROM_ENDPOINT = 0
# Tags of these. The others are those of ProgressReports.
LOST, OFFER, READABLE, RETURNED, REFUSED, CONNECT = 1, 4, 5, 6, 7, 8
# The length in the head of a message that the peer copies from this rank's memory; a loan follows: its address, bytes,
# number, and a CRC.
LENT = 1 << 63
LOAN = struct.Struct("<QQQ")
LEAST_LOAN, MOST_LOAN = 768 << 10, 1 << 30
# Bytes of a message that this rank is woken up for. If fewer than LEAST_WAKE are missing, any number wakes it up.
LEAST_WAKE, MOST_WAKE = 1 << 14, 1 << 20


def pack_head(group: int, tag: int, size: int) -> bytes:
    """Return the head of a message."""
    return seal(HEAD.pack(group, tag, size))


class Connection:
    """A connection to the rank `peer`. It is used once both ends have authenticated each other.

    Buffers may be posted, and messages sent, before there is a socket. A further connection to the same rank shares
    the buffers of the `first` one.
    """

    def __init__(self, peer: int, first: Connection | None = None) -> None:
        self.peer = self.number = peer
        """The rank in the group, and its number in the job for messages."""
        self.socket: socket.socket | None = None
        self.posted: defaultdict[tuple[int, int], deque[Completion]] = defaultdict(deque)
        self._early: defaultdict[tuple[int, int], deque[Incoming | Loan]] = defaultdict(deque)
        if first is not None:
            self.posted, self._early = first.posted, first._early  # noqa: SLF001 - of its own class
        self.watch: Callable[[int], None] = lambda _mask: None
        """Sets the events of the socket that the endpoint waits for; does nothing until there is a socket."""
        self._out: deque[tuple[list[memoryview], Completion | None]] = deque()
        self._watches_writability = False
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._head_at = 0
        self._incoming: Incoming | None = None
        self._loan_key: tuple[int, int] | None = None
        """The group and tag of the loan that is arriving."""
        self._lent: dict[int, tuple[int, int, memoryview, Completion]] = {}
        self._loans = 0
        self._wake = 1
        self.attempts = 0
        """Attempts of this rank to connect that have failed."""
        self.ended = ""
        """The reason for which the connection has ended; "" while it is usable."""
        self.lost: int | None = None
        """The rank that the peer reports as lost."""
        self.reports: deque[tuple[int, int]] = deque()
        """The other messages of the peer's endpoint: their tags and values."""
        self.offer = 0
        """The offer of the peer's memory; 0 while there is none."""
        self.memory: PeerMemory | None = None
        self.can_lend = False
        """Whether the peer can read this rank's memory."""
        self.requested: deque[int] = deque()
        """The numbers of further connections that the peer requests."""
        self.is_readable = True
        """False after a message of a wrong length: what follows is not read."""

    @property
    def awaited(self) -> bool:
        """True if a message from or to the peer is not complete."""
        return (
            bool(self._lent)
            or any(completion is not None for _, completion in self._out)
            or any(self.posted.values())
            or (self._incoming is not None and self._incoming.completion is not None)
        )

    @property
    def in_handshake(self) -> bool:
        """True if the connection is not usable yet."""
        return self.socket is None and not self.ended

    def has_early(self, group: int, tag: int) -> bool:
        """Return True if a message with a group and tag arrives, or is here, without a buffer."""
        return (group, tag) in self._early

    def post_receive(self, group: int, tag: int, completion: Completion) -> None:
        """Receive the next message of a group and tag. It counts as open unless it is here already.

        Raises OSError if the message is in the memory of the peer, and that cannot be read any more.
        """
        key = group, tag
        if early := self._early.get(key):
            incoming = early.popleft()
            if not early:
                del self._early[key]
            if isinstance(incoming, Loan):
                self._take_early_loan(key, incoming, completion)
                return
            self._check_length(len(incoming.view), completion)
            if incoming.arrived:
                incoming.deliver(completion)
                return
            incoming.post(completion)
            completion.owner.open += 1
            return
        completion.owner.open += 1
        self.posted[key].append(completion)

    def send(self, group: int, tag: int, data: memoryview, completion: Completion | None, *, lend: bool) -> None:
        """Send a message. It counts as open unless the kernel takes all of it at once.

        Args:
            group: Its group.
            tag: Its tag.
            data: Its bytes.
            completion: What to do once it is complete.
            lend: Let the peer copy it from this rank's memory if that can be read. It is complete after that.

        Raises OSError if the connection is broken.
        """
        if lend and self.can_lend and completion is not None and LEAST_LOAN <= len(data) <= MOST_LOAN:
            self._lend(group, tag, data, completion)
            return
        views = [memoryview(pack_head(group, tag, len(data))), data]
        if self.socket is not None and not self._out and self._send_some(views):
            return
        self._queue(views, completion)
        self._watch_writability()

    def _lend(self, group: int, tag: int, data: memoryview, completion: Completion) -> None:
        self._loans += 1
        loan = seal(LOAN.pack(address_of(data), len(data), self._loans))
        self._lent[self._loans] = group, tag, data, completion
        completion.owner.open += 1
        self._out.append(([memoryview(pack_head(group, tag, LENT) + loan)], None))
        try:
            self.flush()
        except OSError:  # the caller counts the message
            completion.owner.open -= 1
            raise

    def send_later(self, group: int, tag: int, data: memoryview, completion: Completion | None = None) -> None:
        """Count a message as open that cannot be sent any more."""
        self._queue([memoryview(pack_head(group, tag, len(data))), data], completion)

    def send_control(self, tag: int, value: int) -> None:
        """Send a message from endpoint to endpoint, which consists of a number. Raises OSError."""
        self._out.append(([memoryview(pack_head(FROM_ENDPOINT, tag, value))], None))
        self.flush()

    def flush(self) -> None:
        """Send what the kernel takes. Raises OSError if the connection is broken."""
        while self.socket is not None and self._out:
            views, completion = self._out[0]
            if not self._send_some(views):
                break
            self._out.popleft()
            if completion is not None:
                completion.finish()
        self._watch_writability()

    def keep_unsent(self) -> None:
        """Copy what is still to be sent: its memory may change from now on."""
        for views, _ in self._out:
            views[:] = [memoryview(bytes(view)) for view in views]

    def flush_all(self, seconds: float) -> None:
        """Send everything, but wait no longer than some seconds. Raises OSError if the connection is broken."""
        if self.socket is not None and self._out and seconds > 0:
            self.socket.settimeout(seconds)
            while self._out:
                self.flush()
            self.socket.setblocking(False)

    def _queue(self, views: list[memoryview], completion: Completion | None) -> None:
        if completion is not None:
            completion.owner.open += 1
        self._out.append((views, completion))

    def _watch_writability(self) -> None:
        """Watch for writability only while something is unsent: else its events would wake up this rank in vain."""
        if self._watches_writability != bool(self._out) and self.socket is not None:
            self._watches_writability = not self._watches_writability
            self.watch(READ | WRITE | EDGE if self._watches_writability else READ | EDGE)

    def _send_some(self, views: list[memoryview]) -> bool:
        """Send what the kernel takes of some memory, and remove it from `views`; return whether that was all."""
        try:
            sent = self.socket.sendmsg(views)  # type: ignore[union-attr]
        except BlockingIOError:
            return False
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views:
            views[0] = views[0][sent:]
        return not views

    def read(self, *, to_end: bool = True) -> bool:
        """Receive what has come; return False at the end of the connection. Raises OSError if it is broken.

        Without `to_end` an end right after the last bytes is left to the next call, which saves a call of the kernel.
        The head of the next message is received together with the end of this one.
        """
        if self.socket is None or not self.is_readable:
            return True
        while True:
            if self._head_at == HEAD_BYTES and self._incoming is None:
                fields = HEAD.unpack(unseal(self._head))
                self._head_at = 0
                self._begin_message(*fields)
            incoming, head = self._incoming, self._head
            try:
                if incoming is None:
                    wanted = HEAD_BYTES - self._head_at
                    received = self.socket.recv_into(head[self._head_at :])
                    self._head_at += received
                else:
                    rest = incoming.view[incoming.at :]
                    wanted = len(rest) + HEAD_BYTES
                    received = self.socket.recvmsg_into([rest, head])[0]
                    incoming.at += min(received, len(rest))
                    self._head_at = max(received - len(rest), 0)
            except BlockingIOError:
                self._set_wake()
                return True
            if not received:
                return False
            if incoming is not None and incoming.at == len(incoming.view):
                self._end_message(incoming)
            if received < wanted and not to_end:
                self._set_wake()
                return True

    def _set_wake(self) -> None:
        """Let the kernel collect the bytes of a long message before it wakes this rank up."""
        incoming = self._incoming
        missing = len(incoming.view) - incoming.at if incoming is not None else 0
        wake = min(missing, MOST_WAKE) if missing >= LEAST_WAKE else 1
        if wake != self._wake:
            self._wake = wake
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the socket."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _begin_message(self, group: int, tag: int, size: int) -> None:
        if group == FROM_ENDPOINT:
            self._take_control(tag, size)
            return
        key = group, tag
        if size == LENT:
            self._loan_key = key
            self._incoming = Incoming(None, LOAN.size + CODE.size)
            return
        completion = self._next_posted(key)
        if completion is not None:
            self._check_length(size, completion)
        incoming = Incoming(completion, size)
        if completion is None:
            self._early[key].append(incoming)
        if size:
            self._incoming = incoming
        else:
            self._end_message(incoming)

    def _take_control(self, tag: int, value: int) -> None:
        if tag == LOST:
            self.lost = value
        elif tag == OFFER:
            self.offer = value
        elif tag == READABLE:
            self.can_lend = True
        elif tag == RETURNED:
            self._lent.pop(value)[-1].finish()
        elif tag == REFUSED:
            self._send_refused(*self._lent.pop(value))
        elif tag == CONNECT:
            self.requested.append(value)
        else:
            self.reports.append((tag, value))

    def _next_posted(self, key: tuple[int, int]) -> Completion | None:
        """Return the buffer for the next message with a group and tag; None if none is posted."""
        posted = self.posted.get(key)
        completion = posted.popleft() if posted else None
        if posted is not None and not posted:
            del self.posted[key]
        return completion

    def _send_refused(self, group: int, tag: int, data: memoryview, completion: Completion) -> None:
        """Send a message that the peer could not copy."""
        self.can_lend = False
        self._out.append(([memoryview(pack_head(group, tag, len(data))), data], completion))
        self.flush()

    def _take_loan(self, key: tuple[int, int], loan: Loan) -> None:
        """Copy a message from the memory of the peer if a buffer is posted. Raises OSError."""
        if not self.posted.get(key):
            self._early[key].append(loan)
            return
        completion = self.posted[key][0]  # it counts as awaited until the bytes are here
        if self._copy_loan(loan, completion):
            self._next_posted(key)
            completion.finish()

    def _take_early_loan(self, key: tuple[int, int], loan: Loan, completion: Completion) -> None:
        """Copy a message whose buffer is posted now; otherwise it counts as open. Raises OSError."""
        copied = False
        try:
            copied = self._copy_loan(loan, completion)
        finally:
            if not copied:
                completion.owner.open += 1
                self.posted[key].append(completion)

    def _copy_loan(self, loan: Loan, completion: Completion) -> bool:
        """Copy a message and confirm that. Raises OSError.

        Return False if the peer sends it over the socket instead, or has failed.
        """
        self._check_length(loan.size, completion)
        target = np.empty(loan.size, np.uint8).data if completion.buffer is None else completion.buffer
        try:
            self.memory.copy(loan.address, target)  # type: ignore[union-attr]
        except RevokedMemoryError:  # the peer has failed: its report follows, or the end of the connection
            return False
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOSYS}:
                raise
            self.send_control(REFUSED, loan.number)
            return False
        if completion.buffer is None:
            completion.owner.data = target
        self.send_control(RETURNED, loan.number)
        return True

    def _end_message(self, incoming: Incoming) -> None:
        self._incoming = None
        if self._loan_key is not None:
            key, self._loan_key = self._loan_key, None
            self._take_loan(key, Loan(*LOAN.unpack(unseal(incoming.view))))
            return
        if incoming.completion is not None:
            incoming.deliver(incoming.completion)
            incoming.completion.finish()

    def _check_length(self, size: int, completion: Completion) -> None:
        if completion.buffer is not None and len(completion.buffer) != size:
            raise WrongLengthError(
                f"a message of rank {self.number} has {size} bytes instead of {len(completion.buffer)}"
            )
