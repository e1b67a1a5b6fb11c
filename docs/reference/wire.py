"""Generator of the page on the wire, for reviewers: the bytes of handshakes and frames, with test vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ddlrun.wire.authentication import (
    TO_ACCEPTING,
    TO_CONNECTING,
    KeyExchange,
    NonceExchange,
    Secret,
    accept_at,
    connect_as,
)
from ddlrun.wire.frames import Checksums, Encoder

if TYPE_CHECKING:
    from ddlrun.wire.frames import Protection

PAGE = Path(__file__).with_name("wire.md")
MARK = "<!-- vectors -->\n"
KEY = bytes(range(32)).hex()
CLAIM = bytes.fromhex("00000007")
# What the end that connects draws, and the other one: nonces, or with encryption private keys.
DRAWN = bytes(range(0x40, 0x60)), bytes(range(0x80, 0xA0))
LIMITS = {b"o": 1 << 20, b"L": 0}
FRAMES = ((b"o", b"hello"), (b"L", b""))
VARIANTS = {
    "BLAKE2b": Secret(f"blake2b:{KEY}"),
    "HMAC-SHA-256": Secret(f"sha256:{KEY}"),
    "BLAKE2b, encrypted": Secret(f"blake2b:{KEY}", encrypted=True),
}


def render_wire() -> str:
    """Return the page with new vectors."""
    text, mark, _ = PAGE.read_text().partition(MARK)
    parts = [(title, list_vectors(secret)) for title, secret in VARIANTS.items()]
    parts.append(("Checksums", dict(list_frames("frame", Checksums()))))
    return text + mark + "".join(map(_render_part, *zip(*parts, strict=True)))


def _render_part(title: str, vectors: dict[str, bytes]) -> str:
    rows = [f"{name:13} {value.hex()}\n" for name, value in vectors.items()]
    return f"\n{title}:\n\n```text\n{''.join(rows)}```\n"


def list_vectors(secret: Secret) -> dict[str, bytes]:
    """Return the values of a connection by their names."""
    size = secret.nonce_bytes
    here, there = ((KeyExchange if secret.encrypted else NonceExchange)(drawn[:size]) for drawn in DRAWN)
    accepting = accept_at(secret, len(CLAIM), lambda _nonce, _claim: None, there)
    connecting = connect_as(secret, CLAIM, here)
    next(accepting)
    greeting, _ = next(connecting)
    welcome, _ = accepting.send(greeting)
    confirmation, _ = connecting.send(welcome)
    agreed = here.agree(there.nonce)
    content = greeting[: size + len(CLAIM)] + welcome[:size] + agreed
    to_accepting, to_connecting = (secret.protection(purpose, content) for purpose in (TO_ACCEPTING, TO_CONNECTING))
    return {
        "GREETING": greeting, "WELCOME": welcome, **({"agreed": agreed} if agreed else {}),
        "CONFIRMATION": confirmation,
        "key_there": secret.code(TO_ACCEPTING, content), **dict(list_frames("frame_there", to_accepting)),
        "key_back": secret.code(TO_CONNECTING, content), **dict(list_frames("frame_back", to_connecting)),
    }  # fmt: skip


def list_frames(name: str, protection: "Protection") -> Iterator[tuple[str, bytes]]:
    """Yield the first frames of a direction, with their names."""
    encoder = Encoder(protection, LIMITS)
    for number, frame in enumerate(FRAMES, 1):
        yield f"{name}_{number}", b"".join(encoder.encode(*frame))
