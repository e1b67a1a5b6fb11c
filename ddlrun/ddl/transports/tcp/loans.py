"""Long messages that a peer on this host copies from this rank's memory, or this rank from the peer's."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np

from ddlrun.ddl.transports.tcp.message import take_next
from ddlrun.ddl.transports.tcp.peer_memory import PeerMemory, RevokedMemoryError, address_of
from ddlrun.ddl.transports.tcp.protocol import LOAN, LOAN_TEXT, NUMBER, OFFER, READABLE, REFUSED, RETURNED

if TYPE_CHECKING:
    from ddlrun.ddl.transports.tcp.message import Completion, Mailbox
    from ddlrun.ddl.transports.tcp.peer_memory import OwnMemory
    from ddlrun.ddl.transports.tcp.protocol import Loan
    from ddlrun.wire.connection import Connection

LEAST, MOST = 768 << 10, 1 << 30


class Loans:
    """The loans between both ends of a connection. The lower rank offers its memory first."""

    def __init__(self, connection: Connection, peer: int, mailbox: Mailbox, memory: OwnMemory) -> None:
        """Take the connection, the rank of the peer, its mailbox, and this rank's memory."""
        self._connection, self._peer, self._mailbox, self._own = connection, peer, mailbox, memory
        self.handlers = {OFFER: self._take_offer, READABLE: self._begin, RETURNED: self._end}
        """The handlers of frames that consist of a number, by kind."""
        self.can_lend = False
        """Whether the peer can read this rank's memory."""
        self.lent: dict[int, tuple[int, int, memoryview, Completion]] = {}
        """The messages that the peer has not copied yet, by their numbers."""
        self._number = 0

    def offer(self) -> None:
        """Offer this rank's memory."""
        self._connection.send(OFFER, NUMBER.pack(self._own.offer))

    def lend(self, group: int, tag: int, data: memoryview, completion: Completion) -> bool:
        """Let the peer copy a message; return False if it cannot. It counts as open until it is copied."""
        if not (self.can_lend and LEAST <= len(data) <= MOST):
            return False
        self._number += 1
        self.lent[self._number] = group, tag, data, completion
        completion.owner.open += 1
        self._connection.send(LOAN, LOAN_TEXT.pack(group, tag, len(data), address_of(data), self._number))
        return True

    def take(self, loan: Loan) -> None:
        """Copy a message if a buffer is posted. Raises OSError."""
        key = loan.group, loan.tag
        if not self._mailbox.posted.get(key):
            self._mailbox.early[key].append(loan)
            return
        completion = self._mailbox.posted[key][0]  # it counts as awaited until the bytes are here
        if self._copy(loan, completion):
            take_next(self._mailbox.posted, key)
            completion.finish()

    def take_early(self, loan: Loan, completion: Completion) -> None:
        """Copy a message whose buffer is posted now; otherwise it counts as open. Raises OSError."""
        copied = False
        try:
            copied = self._copy(loan, completion)
        finally:
            if not copied:
                completion.owner.open += 1
                self._mailbox.posted[loan.group, loan.tag].append(completion)

    def take_back(self, number: int) -> tuple[int, int, memoryview, Completion]:
        """Return a message that the peer could not copy, its group and its tag first, and lend no more."""
        self.can_lend = False
        return self.lent.pop(number)

    def _begin(self, _number: int) -> None:
        self.can_lend = True

    def _end(self, number: int) -> None:
        self.lent.pop(number)[-1].finish()

    def _take_offer(self, offer: int) -> None:
        """Use the memory of the peer, if it can be read, and offer this rank's in return."""
        self._memory = PeerMemory(offer)
        if self._memory.is_readable(self._own.digest(self._peer)):
            self._connection.send(READABLE, NUMBER.pack(0))
        if self._own.rank > self._peer:
            self.offer()

    def _copy(self, loan: Loan, completion: Completion) -> bool:
        """Copy a message and confirm that. Raises OSError.

        Return False if the peer sends it over the socket instead, or has failed.
        """
        self._mailbox.check_length(loan.size, completion)
        target = np.empty(loan.size, np.uint8).data if completion.buffer is None else completion.buffer
        try:
            self._memory.copy(loan.address, target)
        except RevokedMemoryError:  # the peer has failed: its report follows, or the end of the connection
            return False
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOSYS}:
                raise
            self._connection.send(REFUSED, NUMBER.pack(loan.number))
            return False
        if completion.buffer is None:
            completion.owner.data = target
        self._connection.send(RETURNED, NUMBER.pack(loan.number))
        return True
