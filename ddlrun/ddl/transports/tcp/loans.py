"""Long messages that a peer on this host copies from this rank's memory, or this rank from the peer's."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.transports.tcp.message import take_next
from ddlrun.ddl.transports.tcp.protocol import LOAN, LOAN_TEXT, NUMBER, OFFER, READABLE, REFUSED, RETURNED
from ddlrun.wire.authentication import CODE_BYTES, equal

if TYPE_CHECKING:
    from ddlrun.ddl.transports.tcp.message import Completion, Mailbox
    from ddlrun.ddl.transports.tcp.protocol import Loan
    from ddlrun.wire.authentication import Secret
    from ddlrun.wire.connection import Connection

# An offer is a process number, which has at most 22 bits, and the number of a page.
PAGE_BITS, PAGE_NUMBER_BITS = 12, 42
DIGEST, WORD = CODE_BYTES, 8
VALID, REVOKED = (1).to_bytes(WORD, "little"), bytes(WORD)
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
UNRESTRICTED = "0"
PR_SET_PTRACER, ANY_PROCESS = 0x59616D61, -1


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


_Spans = _Span * 2
_libc = ctypes.CDLL(None, use_errno=True)
_read_memory: Any = getattr(_libc, "process_vm_readv", None)
if _read_memory is not None:
    _spans = ctypes.POINTER(_Span)
    _read_memory.argtypes = (ctypes.c_int, _spans, ctypes.c_ulong, _spans, ctypes.c_ulong, ctypes.c_ulong)
    _read_memory.restype = ctypes.c_ssize_t


class RevokedMemoryError(Exception):
    """The peer has revoked its memory: it has failed, and its messages may have changed."""


class OwnMemory:
    """The memory of this rank, which peers recognise by a page: a digest, and a word that is valid until `revoke`."""

    def __init__(self, secret: Secret, rank: int) -> None:
        self._secret, self.rank = secret, rank
        self._page: mmap.mmap | None = None

    @property
    def offer(self) -> int:
        """The number that is sent to peers."""
        if self._page is None:
            # A child process must not change the page.
            self._page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._page[: DIGEST + WORD] = self.digest(self.rank) + VALID
            _let_peers_read()
        return os.getpid() << PAGE_NUMBER_BITS | address_of(self._page) >> PAGE_BITS

    def digest(self, rank: int) -> bytes:
        """Return the digest by which a rank's memory is recognised."""
        return self._secret.code(b"memory", rank.to_bytes(8, "little"))

    def revoke(self) -> None:
        """Let peers know, before messages change, that they may not use what they copy from now on."""
        if self._page is not None:
            self._page[DIGEST : DIGEST + WORD] = REVOKED


class PeerMemory:
    """The memory of a peer, by its offer."""

    def __init__(self, offer: int) -> None:
        self._process = offer >> PAGE_NUMBER_BITS
        self._page = (offer & (1 << PAGE_NUMBER_BITS) - 1) << PAGE_BITS
        self._word = ctypes.create_string_buffer(WORD)
        self._here, self._there = _Spans(), _Spans()
        self._here[1] = _Span(ctypes.addressof(self._word), WORD)
        self._there[1] = _Span(self._page + DIGEST, WORD)

    def is_readable(self, digest: bytes) -> bool:
        """Return True if the page of the offer can be read and has a digest."""
        content = bytearray(DIGEST)
        if _read_memory is None:
            return False
        try:
            self.copy(self._page, memoryview(content))
        except (OSError, RevokedMemoryError):
            return False
        return equal(content, digest)

    def copy(self, address: int, target: memoryview) -> None:
        """Copy bytes of the peer to `target`.

        Raises:
            OSError: The peer has ended, or the system does not allow it any more.
            RevokedMemoryError: The bytes may not be used.
        """
        self._here[0] = _Span(address_of(target), len(target))
        self._there[0] = _Span(address, len(target))
        # The kernel copies in this order: if the word is still valid, the bytes before it were, too.
        copied = _read_memory(self._process, self._here, 2, self._there, 2, 0)
        if copied < 0:
            code = ctypes.get_errno()
            if code == errno.EFAULT and not self._is_valid():  # it was revoked, and its first page is freed already
                raise RevokedMemoryError
            raise OSError(code, os.strerror(code))
        if copied != len(target) + WORD or self._word.raw != VALID:
            raise RevokedMemoryError

    def _is_valid(self) -> bool:
        copied = _read_memory(self._process, ctypes.byref(self._here[1]), 1, ctypes.byref(self._there[1]), 1, 0)
        return bool(copied == WORD) and self._word.raw == VALID


def address_of(data: Any) -> int:  # noqa: ANN401 - an object with the buffer protocol
    """Return the address of bytes in this process."""
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def _let_peers_read() -> None:
    """Allow the user's other processes to trace this one, and so to read it, where only parents and root may."""
    with suppress(OSError, AttributeError), open(YAMA, encoding="ascii") as file:
        if file.read().strip() != UNRESTRICTED:
            _libc.prctl(PR_SET_PTRACER, ctypes.c_long(ANY_PROCESS), 0, 0, 0)


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
