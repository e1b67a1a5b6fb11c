"""The encryption of the connections between keepers and ddlrun, by the package cryptography.

Each end draws an X25519 key for the connection; the public key is its nonce. The keys of both directions depend on the
secret of the run and on the secret on which the two ends agree (X25519), so that nobody can read a recorded connection
with the secret of the run alone. Each text is encrypted and authenticated by AES-128-GCM. The message's number in its
direction is the nonce of AES; its kind and its length are authenticated.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ddlrun.keeper.authentication import FORGED
from ddlrun.keeper.protocol import ProtocolError

NUMBER_BYTES = 12


class EncryptionSuite:
    """Authentication with encryption."""

    nonce_size = 32

    def exchange(self) -> KeyExchange:
        """Return this end's part in the exchange of a new connection."""
        return KeyExchange()

    def protection(self, key: bytes) -> MessageCipher:
        """Return the cipher of one direction."""
        return MessageCipher(key)


class KeyExchange:
    """A private key for one connection, and its public key."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.nonce = self._private.public_key().public_bytes_raw()

    def agree(self, nonce: bytes) -> bytes:
        """Return the secret of both ends. Raises ProtocolError if the nonce of the other is an unsuitable key."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(nonce))
        except ValueError as error:
            raise ProtocolError("its public key is unsuitable") from error


class MessageCipher:
    """The cipher of the messages of one direction, in their order.

    Numbers must not repeat: after a fork, only one of the two processes may go on with it (see daemon.watch_daemon).
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def protect(self, head: bytes, text: bytes) -> bytes:
        """Return the encrypted text of the next message with its code."""
        return self._cipher.encrypt(self._next(), text, head)

    def reveal(self, head: bytes, protected: memoryview) -> bytes:
        """Return the text of the next message. Raises ProtocolError if this is another one."""
        try:
            return self._cipher.decrypt(self._next(), protected, head)
        except InvalidTag:
            raise ProtocolError(FORGED) from None

    def _next(self) -> bytes:
        """Return the number of the next message, which is never used twice with one key."""
        number = self._number
        self._number += 1
        return number.to_bytes(NUMBER_BYTES, "big")
