"""The cryptography of all connections between ddlrun's processes: secrets, the handshake, and the codes of frames.

Both ends know a secret, which never travels over the connection, and prove that to each other:

1. The end that connects sends a GREETING: a random number (nonce), its claim (such as its rank, of a length that the
   protocol fixes), and the code of both.
2. The other end checks the code, and replies with a WELCOME: a nonce of its own, and the code of all that was sent.
3. The end that connects checks that, and sends a CONFIRMATION, the code of the same under another purpose. It proves
   that the greeting was no copy of an earlier one.

A code (MAC) is the first 16 bytes of a keyed digest: of purpose, zero byte and input. From then on each direction
has a key of its own, a code of the same input under a third and a fourth purpose; so it depends on the secret and on
both nonces. The head of each frame (see frames.py) is followed by its code, and so is its text, unless that is empty.
A code covers the number of codes before it in its direction, the head and the text. A frame that was altered, repeated,
left out, reordered, or moved to another direction or connection does not match its code. The receiver checks the code
of the head before it waits for the text, so that an altered length cannot make it wait.

The digest is BLAKE2b, or HMAC-SHA-256 on machines that must not use it (FIPS mode).

With encryption, the nonces are public X25519 keys, drawn for the connection, and the input ends with their
shared secret: nobody can read a recorded connection with the secret alone. Texts are encrypted by AES-128-GCM, whose
tag is the code; its nonce is the number of the code, and the head is authenticated with the text.
"""

from __future__ import annotations

import _operator
import os

from ddlrun.wire.frames import Agreement, FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _hashlib
    import hmac
    from collections.abc import Callable, Generator
    from hashlib import blake2b

    from ddlrun.wire.frames import Bytes, Protection

    Digest = blake2b | hmac.HMAC | _hashlib.HMAC
    # Yields (bytes to send, number of bytes to receive next), gets these bytes, and returns the agreement.
    Handshake = Generator[tuple[bytes, int], bytes, Agreement]

equal = _operator._compare_digest  # noqa: SLF001 - it is hmac.compare_digest, whose module takes 3 ms to import

CODE_BYTES = 16
"""The length of codes and of keys, and that of nonces without encryption."""
PUBLIC_KEY_BYTES = 32
BLAKE2, SHA256 = "blake2b", "sha256"
# The purposes of codes.
GREETING, WELCOME, CONFIRMATION = b"greeting", b"welcome", b"confirmation"
TO_ACCEPTING, TO_CONNECTING = b"to the end that accepts", b"to the end that connects"


class HandshakeError(FrameError):
    """The other end does not know the secret, or does not speak this protocol."""


def keyed_digest(algorithm: str, key: bytes) -> Digest:
    """Return a hash object with a key. Raises ImportError or ValueError where this Python lacks the algorithm."""
    if algorithm == BLAKE2:
        from _blake2 import blake2b  # noqa: PLC0415 - hashlib takes 3 ms to import

        return blake2b(key=key, digest_size=CODE_BYTES)
    try:
        from _hashlib import hmac_new  # noqa: PLC0415 - 3 ms, for machines without BLAKE2
    except ImportError:
        import hmac  # noqa: PLC0415 - for Python 3.8

        return hmac.new(key, digestmod=algorithm)
    return hmac_new(key, digestmod=algorithm)


def choose_algorithm() -> str:
    """Return the algorithm that this machine can use."""
    try:
        keyed_digest(BLAKE2, b"key")
    except (ImportError, ValueError):
        return SHA256
    return BLAKE2


class Secret:
    """What both ends of a connection know, and how their connections are protected."""

    def __init__(self, text: str, *, encrypted: bool = False) -> None:
        """Take the secret from its text, `ALGORITHM:HEX`. Raises ImportError or ValueError (see keyed_digest)."""
        self.text = text
        self.algorithm, _, key = text.partition(":")
        self._digest = keyed_digest(self.algorithm, bytes.fromhex(key))
        self.encrypted = encrypted
        self.nonce_bytes = PUBLIC_KEY_BYTES if encrypted else CODE_BYTES

    @classmethod
    def draw(cls, *, encrypted: bool = False) -> Secret:
        """Return a new secret of 256 bits."""
        return cls(f"{choose_algorithm()}:{os.urandom(32).hex()}", encrypted=encrypted)

    def derive(self, purpose: bytes) -> Secret:
        """Return a secret for another purpose, from which this one cannot be computed."""
        return Secret(f"{self.algorithm}:{self.code(b'secret', purpose).hex()}")

    def code(self, purpose: bytes, content: bytes) -> bytes:
        """Return the code of a purpose and an input, `content`."""
        digest = self._digest.copy()
        digest.update(purpose + b"\0" + content)
        return digest.digest()[:CODE_BYTES]

    def exchange(self) -> NonceExchange | KeyExchange:
        """Return this end's part in the handshake of a new connection."""
        return KeyExchange() if self.encrypted else NonceExchange()

    def protection(self, purpose: bytes, content: bytes) -> Protection:
        """Return the protection of a direction."""
        key = self.code(purpose, content)
        return Encryption(key) if self.encrypted else Authentication(keyed_digest(self.algorithm, key))


def connect_as(secret: Secret, claim: bytes = b"", exchange: NonceExchange | KeyExchange | None = None) -> Handshake:
    """Run the handshake of the end that connects. Raises HandshakeError.

    Args:
        secret: The secret.
        claim: What the other end has to know about this one, and will trust.
        exchange: This end's part, for test vectors; None: a new one.
    """
    exchange = exchange or secret.exchange()
    greeting = exchange.nonce + claim
    size = secret.nonce_bytes
    welcome = yield greeting + secret.code(GREETING, greeting), size + CODE_BYTES
    content = greeting + welcome[:size] + exchange.agree(welcome[:size])
    if not equal(welcome[size:], secret.code(WELCOME, content)):
        raise HandshakeError("another program answers, or what was sent was altered on the way")
    yield secret.code(CONFIRMATION, content), 0
    to_accepting, to_connecting = (secret.protection(purpose, content) for purpose in (TO_ACCEPTING, TO_CONNECTING))
    return Agreement(claim, to_accepting, to_connecting)


def accept_at(
    secret: Secret,
    claim_bytes: int,
    check: Callable[[bytes, bytes], None],
    exchange: NonceExchange | KeyExchange | None = None,
) -> Handshake:
    """Run the handshake of the end that accepts. Raises HandshakeError.

    Args:
        secret: The secret.
        claim_bytes: The length of a claim.
        check: Called with the nonce and the claim of a greeting whose code is right, which may be a copy of an earlier
            one; raises HandshakeError where it is not to be welcomed.
        exchange: This end's part, for test vectors; None: a new one.
    """
    size = secret.nonce_bytes
    greeting = yield b"", size + claim_bytes + CODE_BYTES
    greeting, code = greeting[:-CODE_BYTES], greeting[-CODE_BYTES:]
    if not equal(code, secret.code(GREETING, greeting)):
        raise HandshakeError("this greeting is forged")
    check(greeting[:size], greeting[size:])
    exchange = exchange or secret.exchange()
    content = greeting + exchange.nonce + exchange.agree(greeting[:size])
    confirmation = yield exchange.nonce + secret.code(WELCOME, content), CODE_BYTES
    if not equal(confirmation, secret.code(CONFIRMATION, content)):
        raise HandshakeError("its greeting is a copy, or what it sent was altered on the way")
    to_accepting, to_connecting = (secret.protection(purpose, content) for purpose in (TO_ACCEPTING, TO_CONNECTING))
    return Agreement(greeting[size:], to_connecting, to_accepting)


class NonceExchange:
    """A random number: both ends agree on nothing but the secret."""

    def __init__(self, nonce: bytes = b"") -> None:
        self.nonce = nonce or os.urandom(CODE_BYTES)

    def agree(self, _nonce: bytes) -> bytes:
        """Return nothing."""
        return b""


class KeyExchange:
    """A private X25519 key for one connection, and its public key."""

    def __init__(self, private: bytes = b"") -> None:
        from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415 - 50 ms, for --encrypt alone

        self._parse = x25519.X25519PublicKey.from_public_bytes
        self._private = x25519.X25519PrivateKey.from_private_bytes(private or os.urandom(PUBLIC_KEY_BYTES))
        self.nonce = self._private.public_key().public_bytes_raw()

    def agree(self, nonce: bytes) -> bytes:
        """Return the secret of both ends. Raises HandshakeError if the nonce of the other is an unsuitable key."""
        try:
            return self._private.exchange(self._parse(nonce))
        except ValueError as error:
            raise HandshakeError("its public key is unsuitable") from error


class Authentication:
    """The codes of the frames of one direction, in their order."""

    __slots__ = ("_digest", "_number")
    code_bytes = CODE_BYTES

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._number = 0

    def protect(self, head: bytes, text: Bytes) -> tuple[Bytes, ...]:
        """Return the next text and its code."""
        return text, self._next(head, text)

    def reveal(self, head: bytes, protected: Bytes | bytearray) -> bytes:
        """Return the next text. Raises FrameError if its code differs."""
        text = bytes(protected[:-CODE_BYTES])
        if not equal(protected[-CODE_BYTES:], self._next(head, text)):
            raise FrameError("a message was altered or forged on the way")
        return text

    def _next(self, head: bytes, text: Bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(self._number.to_bytes(8, "big") + head)
        digest.update(text)
        self._number += 1
        return digest.digest()[:CODE_BYTES]


class Encryption:
    """The cipher of the frames of one direction, in their order.

    Numbers must not repeat: after a fork, only one of the two processes may go on with it.
    """

    code_bytes = CODE_BYTES

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see KeyExchange
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - see KeyExchange

        self._cipher, self._invalid = AESGCM(key), InvalidTag
        self._number = 0

    def protect(self, head: bytes, text: Bytes) -> tuple[Bytes, ...]:
        """Return the next text, encrypted, with its code."""
        return (self._cipher.encrypt(self._next(), text, head),)

    def reveal(self, head: bytes, protected: Bytes | bytearray) -> bytes:
        """Return the next text. Raises FrameError if its code differs."""
        try:
            return self._cipher.decrypt(self._next(), protected, head)
        except self._invalid:
            raise FrameError("a message was altered or forged on the way") from None

    def _next(self) -> bytes:
        """Return the number of the next code, which is never used twice with one key."""
        number = self._number
        self._number += 1
        return number.to_bytes(12, "big")
