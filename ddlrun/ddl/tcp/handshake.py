"""The first bytes of a connection: each end proves to the other that it knows the secret of the job.

The end that connects sends a greeting: its rank and a random number (nonce). The other one replies with a nonce of its
own and a proof, and gets a proof in return. A proof is an HMAC under the secret, over the role of its sender, the
ranks of both ends and both nonces, so a proof of another connection does not serve.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

    # Yields (bytes to send, number of bytes to receive next), gets the received bytes, and returns the greeting.
    Handshake = Generator[tuple[bytes, int], bytes, "Greeting"]

MAGIC = b"ddl2"
NONCE, PROOF = 16, 32
GREETING = struct.Struct(f"<4sBII{NONCE}s")
# Purposes of a connection: messages; a request of a higher rank that the lower one connects; the address exchange. The
# numbers after these are further connections for messages.
MESSAGES, KNOCK, EXCHANGE = range(3)


class HandshakeError(Exception):
    """The other end does not know the secret, or does not speak this protocol."""


class Greeting(NamedTuple):
    """The greeting of the end that connects: its purpose, its rank and the other's, a nonce."""

    purpose: int
    sender: int
    receiver: int
    nonce: bytes

    def pack(self) -> bytes:
        """Return the bytes that are sent."""
        return GREETING.pack(MAGIC, *self)


def connect_as(purpose: int, sender: int, receiver: int, secret: bytes) -> Handshake:
    """Run the handshake of the end that connects. A knock is not replied to: it ends with the connection."""
    greeting = Greeting(purpose, sender, receiver, os.urandom(NONCE))
    reply = yield greeting.pack(), NONCE + PROOF
    nonce, proof = reply[:NONCE], reply[NONCE:]
    if not hmac.compare_digest(proof, _prove(secret, b"accepts", greeting, nonce)):
        raise HandshakeError
    yield _prove(secret, b"connects", greeting, nonce), 0
    return greeting


def accept_at(rank: int, size: int, secret: bytes) -> Handshake:
    """Run the handshake of the end that accepts, which has the rank `rank` of `size`."""
    magic, *fields = GREETING.unpack((yield b"", GREETING.size))
    greeting = Greeting(*fields)
    if magic != MAGIC or greeting.receiver != rank or not rank != greeting.sender < size:
        raise HandshakeError
    if greeting.purpose == KNOCK:
        return greeting
    nonce = os.urandom(NONCE)
    proof = yield nonce + _prove(secret, b"accepts", greeting, nonce), PROOF
    if not hmac.compare_digest(proof, _prove(secret, b"connects", greeting, nonce)):
        raise HandshakeError
    return greeting


def _prove(secret: bytes, role: bytes, greeting: Greeting, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + greeting.pack() + nonce, "sha256")
