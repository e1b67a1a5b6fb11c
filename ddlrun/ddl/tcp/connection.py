"""A connection to another rank: messages of any number of groups, in both directions, without blocking."""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING

from ddlrun.ddl.tcp import loans
from ddlrun.ddl.tcp.message import take_next
from ddlrun.ddl.tcp.protocol import ENVELOPE, KINDS, LOAN, LOAN_TEXT, MESSAGE, NUMBER, Loan
from ddlrun.wire.connection import Connection
from ddlrun.wire.frames import Agreement, Checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddlrun.ddl.tcp.message import Completion, Incoming, Mailbox
    from ddlrun.ddl.tcp.peer_memory import OwnMemory
    from ddlrun.wire.frames import Bytes

    # Handles a frame that consists of a number.
    Handler = Callable[["PeerConnection", int], None]

# Bytes that are read together with the end of a message, or before one.
AHEAD = 4096
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
        self.peer, self.mailbox, self._handlers = peer, mailbox, handlers
        self.loans = loans.Loans(peer, mailbox, memory, self.transmit)
        self._sending: deque[Completion] = deque()
        """Those of the messages of which the kernel has not taken all bytes."""
        self._incoming: Incoming | None = None
        self._wake = 1
        self.ended = ""
        """The reason for which the connection has ended; "" while it is usable."""
        self.is_readable = True
        """False after a message of a wrong length: what follows is not read."""

    @property
    def is_usable(self) -> bool:
        """True while there is a socket."""
        return self.is_connected and self.open

    @property
    def awaited(self) -> bool:
        """True if a message from or to the peer is not complete."""
        return (
            bool(self.loans.lent or self._sending)
            or any(self.mailbox.posted.values())
            or (self._incoming is not None and self._incoming.completion is not None)
        )

    def post_receive(self, group: int, tag: int, completion: Completion) -> None:
        """Receive the next message of a group and tag. It counts as open unless it is here already.

        Raises OSError if the message is in the memory of the peer, and that cannot be read any more.
        """
        early = take_next(self.mailbox.early, (group, tag))
        if early is None:
            completion.owner.open += 1
            self.mailbox.posted[group, tag].append(completion)
        elif isinstance(early, Loan):
            self.loans.take_early(early, completion)
        else:
            self.mailbox.check_length(len(early.view), completion)
            if early.arrived:
                early.deliver(completion)
            else:
                early.post(completion)
                completion.owner.open += 1

    def post_send(self, group: int, tag: int, data: memoryview, completion: Completion | None, *, lend: bool) -> None:
        """Send a message. It counts as open unless the kernel takes all of it at once.

        Args:
            group: Its group.
            tag: Its tag.
            data: Its bytes.
            completion: What to do once it is complete.
            lend: Let the peer copy it from this rank's memory if that can be read. It is complete after that.
        """
        if lend and self.loans.can_lend and completion is not None and loans.LEAST <= len(data) <= loans.MOST:
            self.loans.lend(group, tag, data, completion)
            return
        buffers = self.encoder.encode(MESSAGE, ENVELOPE.pack(group, tag, len(data)))
        buffers.append(data)
        if completion is None:
            self.send_raw(buffers)
        elif not self.send_raw(buffers, self._finish_sending):
            completion.owner.open += 1
            self._sending.append(completion)

    def send_number(self, kind: bytes, number: int) -> None:
        """Send a frame that consists of a number."""
        self.transmit(kind, NUMBER.pack(number))

    def transmit(self, kind: bytes, text: bytes, payload: Bytes = b"", completion: Completion | None = None) -> bool:
        """Send a frame and its payload; return True if the kernel has taken all of it.

        If not, the completion is called once it has. An error is reported by `move`.
        """
        buffers = self.encoder.encode(kind, text)
        buffers.append(payload)
        if self.send_raw(buffers, None if completion is None else self._finish_sending):
            return True
        if completion is not None:
            self._sending.append(completion)
        return False

    def _finish_sending(self) -> None:
        self._sending.popleft().finish()

    def move(self) -> None:
        """Receive what has come.

        Raises:
            OSError: The connection has ended (ClosedError) or is broken.
            FrameError: Bytes were altered on the way.
            WrongLengthError: A message has another length than its buffer.
        """
        while self.is_readable:
            incoming = self._incoming
            if incoming is None:
                self.decoder.add(self.read(AHEAD))
                self._take_frames()
            else:
                rest = incoming.view[incoming.at :]
                size, missing = self.read_into(rest, AHEAD), len(rest)
                if size < missing:
                    incoming.at += size
                else:
                    self._end_message(incoming)
                if size > missing:
                    self._take_frames()
            if self.is_drained or not self.open:
                break
        if self._incoming is not None or self._wake > 1:
            self._set_wake()

    def _take_frames(self) -> None:
        while (frame := self.decoder.next_fixed()) is not None:
            self._take(*frame)

    def _take(self, kind: bytes, text: bytes) -> None:
        """Handle a frame that has come."""
        if kind == MESSAGE:
            group, tag, size = ENVELOPE.unpack(text)
            incoming = self._incoming = self.mailbox.begin((group, tag), size)
            part = self.decoder.take(size)
            if part:
                incoming.at = len(part)
                incoming.view[: incoming.at] = part
            if incoming.at == size:
                self._end_message(incoming)
        elif kind == LOAN:
            self.loans.take(Loan(*LOAN_TEXT.unpack(text)))
        else:
            (number,) = NUMBER.unpack(text)
            if kind in self._handlers:
                self._handlers[kind](self, number)
            else:
                self.loans.handle(kind, number)

    def _end_message(self, incoming: Incoming) -> None:
        self._incoming, incoming.at = None, len(incoming.view)
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

    def stop_reading(self) -> None:
        """Leave what follows to the kernel."""
        self.is_readable = False
        self.pause(reading=False)
