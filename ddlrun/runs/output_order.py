"""The order of a run's output: a file with the source, the stream and the length of each block, as they arrived.

The blocks themselves are in a log per source: a rank, or ddlrun, whose number follows those of the ranks.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ddlrun.plan.run_dir import RunDir, rank_log

# The kinds of entries. Blocks are those of standard output, of standard error, and separators, which a log has between
# the streams of its source. The length of a TIME is seconds since 1970, that of a HOST is of the name which follows.
OUT, ERR, SEPARATOR, TIME, HOST = range(5)
_KINDS = 8
_ENTRY = struct.Struct("<II")
# The beginning of the file, with the number of its format, and the switches of the tags.
_MAGIC = b"ddlrun1"
_TAGS, _TIMESTAMPS = 1, 2
HEADER_BYTES = len(_MAGIC) + 1
CHUNK_BYTES = 1 << 18


class OrderEntry(NamedTuple):
    """An entry of the order."""

    kind: int
    source: int
    length: int
    host: str = ""

    @property
    def moved(self) -> int:
        """The number of bytes that it stands for in the log of its source."""
        return self.length if self.kind <= SEPARATOR else 0


class TagSwitches(NamedTuple):
    """What precedes the lines of ranks."""

    tags: bool
    timestamps: bool


def source_log(files: RunDir, source: int, ranks: int) -> str:
    """Return the path of a source's log."""
    return rank_log(files.path, source, ranks) if source < ranks else files.own_log


def pack_header(switches: TagSwitches) -> bytes:
    """Return the beginning of the file."""
    return _MAGIC + bytes([switches.tags * _TAGS | switches.timestamps * _TIMESTAMPS])


def parse_header(data: bytes) -> TagSwitches | None:
    """Return the switches of a file with this beginning; None where it is of another version."""
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        return None
    return TagSwitches(bool(data[-1] & _TAGS), bool(data[-1] & _TIMESTAMPS))


def pack_entry(kind: int, source: int, length: int) -> bytes:
    """Return the bytes of an entry without a name."""
    return _ENTRY.pack(source * _KINDS + kind, length)


def pack_host(source: int, host: str) -> bytes:
    """Return the bytes of the entry with a rank's host."""
    name = host.encode()
    return pack_entry(HOST, source, len(name)) + name


class OrderParser:
    """The entries of a file that grows: the end of the last one may not be there yet."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[OrderEntry]:
        """Yield the entries that are complete with more bytes of the file."""
        data, at = self._rest + data, 0
        while at + _ENTRY.size <= len(data):
            key, length = _ENTRY.unpack_from(data, at)
            source, kind = divmod(key, _KINDS)
            end = at + _ENTRY.size + (length if kind == HOST else 0)
            if end > len(data):
                break
            yield OrderEntry(kind, source, length, data[at + _ENTRY.size : end].decode(errors="replace"))
            at = end
        self._rest = data[at:]
