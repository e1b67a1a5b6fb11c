"""The authentication of the connections between keepers and ddlrun.

Both know the secret of the run and prove it to each other; it is never sent. A keeper sends a GREETING: a random
number (nonce), its rank and the authentication code of both under the secret. ddlrun replies with a WELCOME: a nonce of
its own and the code of both nonces. Each direction of the connection then has a key, which depends on the secret and on
both nonces.

The head of every later message, its kind and its length, is followed by its code, and so is its text, unless that is
empty. A code covers the number of codes before it in its direction, the head and the text. A message that was altered,
repeated, left out, reordered, or moved to another direction or connection does not match its code. The receiver checks
the code of the head before it waits for the text, so that an altered length cannot make it wait.

A suite has the algorithms for this. See encryption.py for the one that also encrypts the texts.
"""

from __future__ import annotations

import _operator
import os

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import HEAD, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Digest(Protocol):
        """A hash object with a key."""

        def copy(self) -> Digest:
            """Return another one in the same state."""

        def update(self, data: bytes, /) -> None:
            """Add data."""

        def digest(self) -> bytes:
            """Return the authentication code of the data."""

    class Exchange(Protocol):
        """One end's part in the exchange of the first messages."""

        nonce: bytes

        def agree(self, nonce: bytes) -> bytes:
            """Return the secret on which both ends agree, given the nonce of the other. Raises ProtocolError."""

    class Protection(Protocol):
        """The protection of the messages of one direction, in their order."""

        def protect(self, head: bytes, text: bytes) -> bytes:
            """Return the text of the next message with its code, which has SIZE bytes."""

        def reveal(self, head: bytes, protected: memoryview) -> bytes:
            """Return the text of the next message. Raises ProtocolError if this is another one."""

    class Suite(Protocol):
        """The algorithms of a connection."""

        nonce_size: int

        def exchange(self) -> Exchange:
            """Return this end's part in the exchange of a new connection."""

        def protection(self, key: bytes) -> Protection:
            """Return the protection of one direction; `key` has SIZE bytes."""


equal = _operator._compare_digest  # noqa: SLF001 - it is hmac.compare_digest, whose module takes 3 ms to import

SIZE = 16
"""The bytes of nonces without encryption, of authentication codes and of keys."""
RANK_BYTES = 4
FORGED = "a message was altered or forged on the way"
BLAKE2, SHA256 = "blake2b", "sha256"


def keyed_digest(algorithm: str, key: bytes) -> Digest:
    """Return a hash object with a key: BLAKE2, or an HMAC for machines that must not use it (FIPS mode)."""
    if algorithm == BLAKE2:
        from _blake2 import blake2b  # noqa: PLC0415 - hashlib takes 3 ms to import

        return blake2b(key=key, digest_size=SIZE)
    from _hashlib import hmac_new  # noqa: PLC0415 - 3 ms, for machines without BLAKE2

    return hmac_new(key, digestmod=algorithm)


def choose_algorithm() -> str:
    """Return the algorithm that this machine can use."""
    try:
        keyed_digest(BLAKE2, b"key")
    except (ImportError, ValueError):
        return SHA256
    return BLAKE2


class RunSecret:
    """The secret of a run, and the suite of its connections."""

    def __init__(self, text: str, suite: Suite | None = None) -> None:
        """Take the secret from its text, `ALGORITHM:HEX`; without a suite, messages are not encrypted."""
        self.text = text
        algorithm, _, key = text.partition(":")
        self._digest = keyed_digest(algorithm, bytes.fromhex(key))
        self.suite = suite or PlainSuite(algorithm)

    @classmethod
    def draw(cls, suite: Suite | None = None) -> RunSecret:
        """Return a new secret of 256 bits."""
        return cls(f"{choose_algorithm()}:{os.urandom(32).hex()}", suite)

    @property
    def welcome_bytes(self) -> int:
        """The number of bytes of a WELCOME."""
        return HEAD + self.suite.nonce_size + SIZE

    @property
    def greeting_bytes(self) -> int:
        """The number of bytes of a GREETING."""
        return self.welcome_bytes + RANK_BYTES

    def program_secret(self) -> str:
        """Return the secret of the run's programs, from which this one cannot be computed."""
        return self._code(b"programs", b"").hex()

    def greeting(self, nonce: bytes, rank: int) -> bytes:
        """Return the text of a GREETING."""
        content = nonce + rank.to_bytes(RANK_BYTES, "big", signed=True)
        return content + self._code(protocol.GREETING, content)

    def open_greeting(self, text: bytes) -> tuple[bytes, int]:
        """Return the nonce and the rank of a GREETING. Raises ProtocolError if its sender does not know the secret."""
        size = self.suite.nonce_size
        nonce, rank = text[:size], int.from_bytes(text[size:-SIZE], "big", signed=True)
        if not equal(text, self.greeting(nonce, rank)):
            raise ProtocolError("this greeting is forged")
        return nonce, rank

    def welcome(self, nonces: bytes) -> bytes:
        """Return the text of a WELCOME; `nonces` is the keeper's and ddlrun's own."""
        return nonces[self.suite.nonce_size :] + self._code(protocol.WELCOME, nonces)

    def to_ddlrun(self, material: bytes) -> Protection:
        """Return the protection of messages from a keeper; `material` is both nonces and the result of `agree`."""
        return self.suite.protection(self._code(b"to ddlrun", material))

    def to_keeper(self, material: bytes) -> Protection:
        """Return the protection of messages to a keeper; see `to_ddlrun`."""
        return self.suite.protection(self._code(b"to keeper", material))

    def _code(self, purpose: bytes, content: bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(purpose + b"\0" + content)
        return digest.digest()[:SIZE]


class PlainSuite:
    """Authentication without encryption."""

    nonce_size = SIZE

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm

    def exchange(self) -> PlainExchange:
        """Return this end's part in the exchange of a new connection."""
        return PlainExchange()

    def protection(self, key: bytes) -> MessageCode:
        """Return the codes of one direction."""
        return MessageCode(keyed_digest(self._algorithm, key))


class PlainExchange:
    """A random number: both ends agree on nothing but the secret of the run."""

    def __init__(self) -> None:
        self.nonce = os.urandom(SIZE)

    def agree(self, _nonce: bytes) -> bytes:
        """Return nothing."""
        return b""


class MessageCode:
    """The authentication codes of the messages of one direction, in their order."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._number = 0

    def protect(self, head: bytes, text: bytes) -> bytes:
        """Return the text of the next message with its code."""
        return text + self._next(head, text)

    def reveal(self, head: bytes, protected: memoryview) -> bytes:
        """Return the text of the next message. Raises ProtocolError if this is another one."""
        text = bytes(protected[:-SIZE])
        if not equal(protected[-SIZE:], self._next(head, text)):
            raise ProtocolError(FORGED)
        return text

    def _next(self, head: bytes, text: bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(self._number.to_bytes(8, "big") + head)
        digest.update(text)
        self._number += 1
        return digest.digest()[:SIZE]


class Sealer:
    """The messages of one direction, as they are sent."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    def seal(self, kind: bytes, text: bytes = b"") -> bytes:
        """Return the next message, protected; a text that is too long is cut off."""
        text = text[: protocol.MOST_TEXT]
        head = protocol.pack_head(kind, text)
        sealed = head + self._protection.protect(head, b"")
        return sealed + self._protection.protect(head, text) if text else sealed


class Unsealer:
    """Splits the bytes of one direction into messages, and checks them."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection
        self._rest = bytearray()
        self._head = b""
        """The head of the message that has not arrived completely; empty if that is incomplete, too."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add received bytes; yield the messages that are now complete, as (kind, text).

        Raises:
            ProtocolError: A message is too long, or is not the next one of its sender.
        """
        self._rest += data
        while self._head or len(self._rest) >= HEAD + SIZE:
            if not self._head:
                head = bytes(self._rest[:HEAD])
                del self._rest[:HEAD]
                self._reveal(head, SIZE)
                self._head = head
            size = protocol.length_of(self._head)
            if size and len(self._rest) < size + SIZE:
                return
            head, self._head = self._head, b""
            yield head[:1], self._reveal(head, size + SIZE) if size else b""

    def _reveal(self, head: bytes, size: int) -> bytes:
        """Take the next bytes, a text and its code; return the text. Raises ProtocolError if they are others."""
        with memoryview(self._rest) as view, view[:size] as protected:
            text = self._protection.reveal(head, protected)
        del self._rest[:size]
        return text
