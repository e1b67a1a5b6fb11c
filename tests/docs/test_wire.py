"""The page on the wire: its vectors are those of the code, and follow from its text with the standard library."""

import hmac
import re
from collections.abc import Callable
from hashlib import blake2b
from zlib import crc32

import pytest

from docs.reference.wire import CLAIM, DRAWN, KEY, PAGE, render_wire
from tests.support import needs

KEY_BYTES = bytes.fromhex(KEY)
DIGESTS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "BLAKE2b": lambda key, content: blake2b(content, key=key, digest_size=16).digest(),
    "HMAC-SHA-256": lambda key, content: hmac.digest(key, content, "sha256")[:16],
}


def read_vectors(title: str) -> dict[str, bytes]:
    """Return the vectors below a title."""
    block = PAGE.read_text().partition(f"\n{title}:\n\n```text\n")[2].partition("```")[0]
    return {name: bytes.fromhex(value) for name, value in re.findall(r"(.+?) +([0-9a-f]{16,})\n", block)}


def test_the_page_has_the_vectors_of_the_code() -> None:
    assert PAGE.read_text() == render_wire(), "make reference"


@pytest.mark.parametrize("title", [*DIGESTS, "BLAKE2b, encrypted"])
def test_the_handshake_follows_from_the_text(title: str) -> None:
    encrypted = title not in DIGESTS
    digest, vectors = DIGESTS[title.partition(",")[0]], read_vectors(title)

    def code(purpose: bytes, content: bytes) -> bytes:
        return digest(KEY_BYTES, purpose + b"\0" + content)

    here, there = public_keys() if encrypted else [drawn[:16] for drawn in DRAWN]
    content = here + CLAIM + there + vectors.get("agreed", b"")
    assert vectors["GREETING"] == here + CLAIM + code(b"greeting", here + CLAIM)
    assert vectors["WELCOME"] == there + code(b"welcome", content)
    assert vectors["CONFIRMATION"] == code(b"confirmation", content)
    assert vectors["key_there"] == code(b"to the end that accepts", content)
    assert vectors["key_back"] == code(b"to the end that connects", content)


def public_keys() -> list[bytes]:
    """Return the public keys of both ends."""
    needs.package("cryptography")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - see needs

    return [X25519PrivateKey.from_private_bytes(drawn).public_key().public_bytes_raw() for drawn in DRAWN]


@pytest.mark.parametrize("direction", ["there", "back"])
@pytest.mark.parametrize("title", DIGESTS)
def test_the_frames_follow_from_the_text(title: str, direction: str) -> None:
    digest, vectors = DIGESTS[title], read_vectors(title)
    key, heads = vectors[f"key_{direction}"], [b"o\0\0\0\5", b"L\0\0\0\0"]
    contents = [heads[0], heads[0] + b"hello", heads[1]]
    codes = [digest(key, number.to_bytes(8, "big") + content) for number, content in enumerate(contents)]
    assert vectors[f"frame_{direction}_1"] == heads[0] + codes[0] + b"hello" + codes[1]
    assert vectors[f"frame_{direction}_2"] == heads[1] + codes[2]


@pytest.mark.parametrize("direction", ["there", "back"])
def test_the_encrypted_frames_follow_from_the_text(direction: str) -> None:
    needs.package("cryptography")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - see needs

    vectors, heads = read_vectors("BLAKE2b, encrypted"), [b"o\0\0\0\5", b"L\0\0\0\0"]
    cipher = AESGCM(vectors[f"key_{direction}"])
    tags = [
        cipher.encrypt(number.to_bytes(12, "big"), text, head)
        for number, (head, text) in enumerate([(heads[0], b""), (heads[0], b"hello"), (heads[1], b"")])
    ]
    assert vectors[f"frame_{direction}_1"] == heads[0] + tags[0] + tags[1]
    assert vectors[f"frame_{direction}_2"] == heads[1] + tags[2]


def test_the_checksums_follow_from_the_text() -> None:
    vectors, head = read_vectors("Checksums"), b"o\0\0\0\5"
    codes = [crc32(head, 1), crc32(head + b"hello", 2), crc32(b"L\0\0\0\0", 3)]
    first, second, third = (code.to_bytes(4, "big") for code in codes)
    assert vectors["frame_1"] == head + first + b"hello" + second
    assert vectors["frame_2"] == b"L\0\0\0\0" + third
