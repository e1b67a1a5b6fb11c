"""The authentication of the connections between keepers and ddlrun.

Both know the secret of the run and prove it to each other; it is never sent. A keeper sends a GREETING: a random
number (nonce) and its authentication code under the secret. ddlrun replies with a WELCOME: a nonce of its own and the
code of both. Each direction of the connection then has a key, which depends on the secret and on both nonces.

Every later message is followed by its code, over the number of the message in its direction, its kind, its length
and its text. A message that was altered, repeated, left out, reordered, or moved to another direction or connection
does not match its code.
"""

from __future__ import annotations

import _operator
import os

from ddlrun.rank import protocol
from ddlrun.rank.protocol import HEAD, ProtocolError

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


equal = _operator._compare_digest  # noqa: SLF001 - it is hmac.compare_digest, whose module takes 3 ms to import

SIZE = 16
"""The bytes of nonces, and of authentication codes."""
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
    """The secret of a run."""

    def __init__(self, text: str) -> None:
        """Take the secret from its text, `ALGORITHM:HEX`."""
        self.text = text
        self._algorithm, _, key = text.partition(":")
        self._digest = keyed_digest(self._algorithm, bytes.fromhex(key))

    @classmethod
    def draw(cls) -> RunSecret:
        """Return a new secret of 256 bits."""
        return cls(f"{choose_algorithm()}:{os.urandom(32).hex()}")

    def greeting(self, nonce: bytes) -> bytes:
        """Return the text of a GREETING."""
        return nonce + self._code(protocol.GREETING, nonce)

    def welcome(self, nonces: bytes) -> bytes:
        """Return the text of a WELCOME; `nonces` is the keeper's and ddlrun's own."""
        return nonces[SIZE:] + self._code(protocol.WELCOME, nonces)

    def to_ddlrun(self, nonces: bytes) -> MessageCode:
        """Return the codes of the messages from a keeper to ddlrun."""
        return self._messages(b"to ddlrun", nonces)

    def to_keeper(self, nonces: bytes) -> MessageCode:
        """Return the codes of the messages from ddlrun to a keeper."""
        return self._messages(b"to keeper", nonces)

    def _messages(self, direction: bytes, nonces: bytes) -> MessageCode:
        return MessageCode(keyed_digest(self._algorithm, self._code(direction, nonces)))

    def _code(self, purpose: bytes, nonces: bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(purpose + b"\0" + nonces)
        return digest.digest()[:SIZE]


class MessageCode:
    """The authentication codes of the messages of one direction, in their order."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._number = 0

    def next(self, head: bytes, text: bytes) -> bytes:
        """Return the code of the next message."""
        digest = self._digest.copy()
        digest.update(self._number.to_bytes(8, "big") + head)
        digest.update(text)
        self._number += 1
        return digest.digest()[:SIZE]


class Sealer:
    """The messages of one direction, as they are sent."""

    def __init__(self, codes: MessageCode) -> None:
        self._codes = codes

    def seal(self, kind: bytes, text: bytes = b"") -> bytes:
        """Return the next message with its code; a text that is too long is cut off."""
        text = text[: protocol.MOST_TEXT]
        head = protocol.pack_head(kind, text)
        return b"".join((head, text, self._codes.next(head, text)))


class Unsealer:
    """Splits the bytes of one direction into messages, and checks their codes."""

    def __init__(self, codes: MessageCode) -> None:
        self._codes = codes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add received bytes; yield the messages that are now complete, as (kind, text).

        Raises:
            ProtocolError: A message is too long, or is not the next one of its sender.
        """
        rest = self._rest
        rest += data
        at = 0
        try:
            while len(rest) - at >= HEAD:
                head = bytes(rest[at : at + HEAD])
                end = at + HEAD + protocol.length_of(head)
                if end + SIZE > len(rest):
                    break
                with memoryview(rest) as view:
                    text, code = bytes(view[at + HEAD : end]), bytes(view[end : end + SIZE])
                if not equal(code, self._codes.next(head, text)):
                    raise ProtocolError("a message was altered or forged on the way")
                at = end + SIZE
                yield head[:1], text
        finally:
            del rest[:at]
