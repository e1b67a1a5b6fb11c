"""A connection to another rank: messages of any number of groups, in both directions, without blocking."""

from __future__ import annotations

import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ddlrun.ddl.transports.tcp.loans import Loans
from ddlrun.ddl.transports.tcp.message import take_next
from ddlrun.ddl.transports.tcp.protocol import ENVELOPE, KINDS, LOAN, LOAN_TEXT, MESSAGE, NUMBER, REFUSED, Loan
from ddlrun.wire.connection import Connection
from ddlrun.wire.frames import Agreement, Checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddlrun.ddl.transports.tcp.loans import OwnMemory
    from ddlrun.ddl.transports.tcp.message import Completion, Incoming, Mailbox

    # Handles a frame that consists of a number.
    Handler = Callable[["PeerConnection", int], None]

# Bytes of a frame that announces a message. A message of up to SHORT bytes is read together with its frame if the last
# one was short, too; the kernel copies a long one to its buffer, in less time where both are aligned.
FRAME, SHORT = 1 + ENVELOPE.size + Checksums.code_bytes, 4096
# Bytes of a message that this rank is woken up for. If fewer than LEAST_WAKE are missing, any number wakes it up.
LEAST_WAKE, MOST_WAKE = 1 << 14, 1 << 20


class PeerConnection(Connection):
    """A connection to the rank `peer`. It is used once both ends have authenticated each other.

    Buffers may be posted, and messages sent, before there is a socket. Further connections to the same rank share the
    mailbox. Frames are protected by checksums alone.
    """

    def __init__(self, peer: int, mailbox: Mailbox, memory: OwnMemory, handlers: Mapping[bytes, Handler]) -> None:
        """Take the rank of the peer in the group, its mailbox, this rank's memory, and the handlers of some kinds."""
        super().__init__(None)
        self.begin(Agreement(b"", Checksums(), Checksums()), sent=KINDS, received=KINDS)
        self.peer, self.mailbox = peer, mailbox
        self.loans = Loans(self, peer, mailbox, memory)
        self._handlers: dict[bytes, Callable[[int], None]] = {REFUSED: self._send_refused, **self.loans.handlers}
        self._handlers |= {kind: partial(handler, self) for kind, handler in handlers.items()}
        self._sending: deque[Completion] = deque()
        """Those of the messages of which the kernel has not taken all bytes."""
        self._incoming: Incoming | None = None
        self._ahead = FRAME + SHORT
        """The number of bytes that are read before a message."""
        self._following = bytearray(FRAME)
        self._wake = 1
        self.ended = ""
        """The reason why the connection has ended; "" while it is usable."""

    @property
    def is_usable(self) -> bool:
        """True while there is a socket."""
        return self.is_connected and self.open

    @property
    def awaited(self) -> bool:
        """True if a message from or to the peer is not complete."""
        return bool(self.loans.lent or self._sending or self.mailbox.posted) or (
            self._incoming is not None and self._incoming.completion is not None
        )

    def post_receive(self, group: int, tag: int, completion: Completion) -> None:
        """Receive the next message of a group and tag. It counts as open unless it is here already.

        Raises OSError if the message is in the memory of the peer, and that cannot be read any more.
        """
        key = group, tag
        early = take_next(self.mailbox.early, key)
        if early is None:
            completion.owner.open += 1
            self.mailbox.posted[key].append(completion)
        elif isinstance(early, Loan):
            self.loans.take_early(early, completion)
        else:
            self.mailbox.check_length(len(early.view), completion)
            if early.arrived:
                early.deliver(completion)
            else:
                early.post(completion)
                completion.owner.open += 1

    def post_send(self, group: int, tag: int, data: memoryview, completion: Completion) -> bool:
        """Send a message; return False if it counts as open: the kernel has not taken all of it at once."""
        buffers = self.encoder.encode(MESSAGE, ENVELOPE.pack(group, tag, len(data)))
        buffers.append(data)
        if self.send_raw(buffers, self._finish_sending):
            return True
        completion.owner.open += 1
        self._sending.append(completion)
        return False

    def send_number(self, kind: bytes, number: int) -> None:
        """Send a frame that consists of a number."""
        self.send(kind, NUMBER.pack(number))

    def _send_refused(self, number: int) -> None:
        """Send a message that the peer could not copy."""
        group, tag, data, completion = self.loans.take_back(number)
        if self.post_send(group, tag, data, completion):
            completion.finish()
        else:
            completion.owner.open -= 1  # it was counted already

    def _finish_sending(self) -> None:
        self._sending.popleft().finish()

    def move(self) -> None:
        """Receive what has come.

        Raises:
            OSError: The connection has ended (ClosedError) or is broken.
            FrameError: Bytes were altered on the way.
            WrongLengthError: A message differs in length from its buffer.
        """
        while self.reading:  # not after a message of a wrong length
            incoming = self._incoming
            if incoming is None:
                self.decoder.add(self.read(self._ahead))
            else:
                incoming.at += self.read_into(incoming.view[incoming.at :], self._following)
                if incoming.at == len(incoming.view):
                    self._end_message(incoming)
            while self._incoming is None and (frame := self.decoder.next_fixed()) is not None:
                self._take(*frame)
            if self.is_drained or not self.open:
                break
        if self._incoming is not None or self._wake > 1:
            self._set_wake()

    def _take(self, kind: bytes, text: bytes) -> None:
        """Handle a frame that has come."""
        if kind == MESSAGE:
            group, tag, size = ENVELOPE.unpack(text)
            incoming = self._incoming = self.mailbox.begin((group, tag), size)
            self._ahead = FRAME if size > SHORT else FRAME + SHORT
            part = self.decoder.take(size)
            if part:
                incoming.at = len(part)
                incoming.view[: incoming.at] = part
            if incoming.at == size:
                self._end_message(incoming)
        elif kind == LOAN:
            self.loans.take(Loan(*LOAN_TEXT.unpack(text)))
        else:
            self._handlers[kind](*NUMBER.unpack(text))

    def _end_message(self, incoming: Incoming) -> None:
        self._incoming = None
        if incoming.completion is not None:
            if not incoming.is_posted:
                incoming.deliver(incoming.completion)
            incoming.completion.finish()

    def _set_wake(self) -> None:
        """Let the kernel collect the bytes of a long message before it wakes this rank up."""
        incoming = self._incoming
        missing = len(incoming.view) - incoming.at if incoming is not None else 0
        wake = min(missing, MOST_WAKE) if missing >= LEAST_WAKE else 1
        if wake != self._wake and self.open:
            self._wake = wake
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
