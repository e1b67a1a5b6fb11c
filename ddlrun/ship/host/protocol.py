"""The messages between ddlrun and hosts while files are copied; their texts are records as arrays of JSON.

Each connection begins with the handshake of wire/authentication.py. Its claim is the SHA-256 of the archive that a host
asks for, of ddlrun or of the host before it in the chain; NO_ARCHIVE: messages follow.

kind       from    text       payload
STATE      host    HostState
TRANSFERS  ddlrun  Transfers
ARCHIVE    either             the archive, up to its size, or, if compressed, up to the end of the connection
OFFER      host    Offer
READY      ddlrun
FILES      host    [Row, ...] the contents of these files, one after the other
END        host    End
RECEIVED   ddlrun
"""

from __future__ import annotations

from typing import NamedTuple

DIGEST_BYTES = 32
NO_ARCHIVE = bytes(DIGEST_BYTES)
STATE, TRANSFERS, ARCHIVE, OFFER, READY, FILES, END, RECEIVED = (bytes([kind]) for kind in b"STAORFEK")
# The length of the longest text per kind.
TO_DDLRUN = {STATE: 1 << 20, OFFER: 1 << 20, FILES: 1 << 28, END: 1 << 24}
TO_HOST = {TRANSFERS: 1 << 20, ARCHIVE: 0, READY: 0, RECEIVED: 0}
# Time limits in seconds: of the handshake, and, on hosts, without any progress.
HANDSHAKE_SECONDS, SILENCE_SECONDS = 20.0, 120.0


class HostState(NamedTuple):
    """The state of a host before the transfer."""

    host: str
    error: str = ""
    """The reason why it cannot receive files."""
    port: int = 0
    """The port on which it passes archives on."""
    missing: tuple[str, ...] = ()
    """The hashes of the archives that are not there."""
    free: int = 0
    version: tuple[int, ...] = ()
    """That of the interpreter which an environment needs; empty: there is none, or it needs none."""
    glibc: tuple[int, ...] = ()
    zstd: bool = False
    """Whether it has the program zstd."""


class Transfer(NamedTuple):
    """A host's part in the transfer of an archive."""

    digest: str
    size: int
    addresses: tuple[str, ...]
    """Those of the host before it in the chain, or of ddlrun."""
    port: int
    passes_on: bool
    compressed: bool


class Transfers(NamedTuple):
    """The reply to all hosts, once each has reported its state."""

    transfers: tuple[Transfer, ...]
    stop: bool
    """Whether the run does not start."""


class Offer(NamedTuple):
    """What a host is about to send back."""

    host: str
    unreadable: tuple[tuple[str, str], ...]
    """Paths that cannot be read, with the reasons."""
    left: tuple[tuple[str, str], ...]
    """Paths that are not copied back, with the reasons."""


class Row(NamedTuple):
    """A file that a host sends back; `path` is relative to the working folder, `mtime` in ns."""

    path: str
    mode: int
    mtime: int
    size: int


class End(NamedTuple):
    """The end of a host's files."""

    digest: str
    """The SHA-256 of their contents."""
    broken: tuple[int, ...]
    """The rows of files that could not be read to their sizes, which zeros fill up."""
