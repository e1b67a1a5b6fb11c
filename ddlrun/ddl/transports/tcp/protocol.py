"""The protocol between ranks: the claim with which a connection begins, the kinds of frames, and their texts."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.wire.authentication import SHA256, Secret
from ddlrun.wire.frames import Checksums, Fixed

if TYPE_CHECKING:
    from ddlrun.wire.frames import Bytes

CLAIM = struct.Struct("<BII")
# Purposes of a connection: the address exchange; a request of a higher rank that the lower one connects. The others are
# the numbers of the connections for messages.
EXCHANGE, KNOCK = 254, 255

# A message of a group: group, tag and bytes; its bytes follow. One that the peer copies from this rank's memory: group,
# tag, bytes, address and number.
MESSAGE, LOAN = b"M", b"L"
# Others consist of a number: that of a lost rank; an offer of memory; this rank can read the memory that was offered;
# the loan of this number was copied, or cannot be copied; a request for the connection of this number; the collectives
# that a rank has begun, as a question for those of the peer, and the reply.
LOST, OFFER, READABLE, RETURNED, REFUSED, CONNECT, QUESTION, REPLY = (bytes([kind]) for kind in b"XORDFCQA")

ENVELOPE, LOAN_TEXT, NUMBER = struct.Struct("<QIQ"), struct.Struct("<QIQQQ"), struct.Struct("<Q")
NUMBERS = dict.fromkeys((LOST, OFFER, READABLE, RETURNED, REFUSED, CONNECT, QUESTION, REPLY), Fixed(NUMBER.size))
KINDS = {MESSAGE: Fixed(ENVELOPE.size), LOAN: Fixed(LOAN_TEXT.size), **NUMBERS}

# The address exchange: a JSON record of each rank, and the reply with those of all ranks.
RECORD = b"J"
RECORDS, REPLIES = {RECORD: 1 << 16}, {RECORD: 1 << 30}


class Claim(NamedTuple):
    """The purpose of a connection, the rank that connects, and the one that accepts."""

    purpose: int
    sender: int
    receiver: int

    def pack(self) -> bytes:
        """Return the bytes that are sent.

        >>> Claim.parse(Claim(KNOCK, 2, 1).pack())
        Claim(purpose=255, sender=2, receiver=1)
        """
        return CLAIM.pack(*self)

    @classmethod
    def parse(cls, data: bytes) -> Claim:
        """Return a claim that was received."""
        return cls(*CLAIM.unpack(data))


class Loan(NamedTuple):
    """A message in the memory of the peer."""

    group: int
    tag: int
    size: int
    address: int
    number: int


def make_secret(text: str) -> Secret:
    """Return the secret of a job, given the text by which its ranks know it. All Pythons have its algorithm."""
    return Secret(f"{SHA256}:{text.encode().hex()}")


def seal(data: Bytes) -> bytes:
    """Return the bytes of a message with a checksum."""
    return b"".join(Checksums().protect(b"", data))


def unseal(data: memoryview) -> bytes:
    """Return the bytes of a message without their checksum. Raises FrameError if they were altered."""
    return Checksums().reveal(b"", data)
