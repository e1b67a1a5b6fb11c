"""The files that ranks wrote on a host, and their way back to ddlrun.

They travel as a stream: the length of its manifest in 8 bytes, the manifest as JSON, the contents of all files one
after the other, and the SHA-256 of all that. The manifest is a list of [path, mode, mtime in ns, size], with paths
relative to the working folder. One byte follows each file: WHOLE, or BROKEN where it could not be read to its size,
which zeros fill up.
"""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import hashlib
import json
import os
import stat

from ddlrun.ship.host.link import receive_line
from ddlrun.ship.host.unpack import BLOCK, HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Row = tuple[str, int, int, int]
    Unreadable = tuple[str, str]

# Folders that do not come back: caches, and the folder whose hooks git would run.
LEFT_OUT = frozenset(("__pycache__", ".git"))
DIGEST_BYTES = 32
WHOLE, BROKEN = b"\1", b"\0"
LARGEST_NUMBER = 1 << 62
# The unreadable files and folders that a host names, at most, and the characters of each of them.
MOST_UNREADABLE, LONGEST_NAME = 20, 200
WILDCARDS = frozenset("*?[")


def is_wanted(path: str, wanted: Iterable[str]) -> bool:
    """Return True for a path that is one of the wanted ones, below one, or matches one with wildcards.

    No path outside of the folder to which they are relative is wanted.

    >>> [is_wanted(path, ["out", "*.csv"]) for path in ("out/a", "outer", "x.csv")], is_wanted("a", ["."])
    ([True, False, True], True)
    """
    return any(name in (".", path) or path.startswith(f"{name}/") or fnmatch.fnmatchcase(path, name) for name in wanted)


def may_hold(folder: str, wanted: Iterable[str]) -> bool:
    """Return True for a folder in which wanted files may be.

    >>> [may_hold(folder, ["out/a", "logs"]) for folder in (".", "out", "logs/x", "other")], may_hold("x", ["*.csv"])
    ([True, True, True, False], True)
    """
    return any(
        folder == "." or name.startswith(f"{folder}/") or WILDCARDS.intersection(name) or is_wanted(folder, [name])
        for name in wanted
    )


def list_results(
    folder: str, wanted: Sequence[str], copies: Mapping[str, int] | None = None
) -> tuple[list[Row], list[Unreadable]]:
    """Return the rows of the wanted files that ranks wrote below a folder, and what cannot be read, with the reasons.

    Files that were shipped are links there, or `copies` with their times of change, and neither comes back.
    """
    rows: list[Row] = []
    unreadable: list[Unreadable] = []

    def complain(error: OSError) -> None:
        path = os.path.relpath(error.filename or folder, folder)
        vanished = isinstance(error, FileNotFoundError) and path != "."
        if not vanished and may_hold(path, wanted):
            unreadable.append((path[:LONGEST_NAME], error.strerror or str(error)))

    folders = collections.deque([folder])
    while folders:  # os.walk of Python 3.11 and older ends at the 1000th level
        try:
            with os.scandir(folders.popleft()) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            complain(error)
            continue
        for entry in entries:
            path = os.path.relpath(entry.path, folder)
            if entry.is_dir(follow_symlinks=False):
                folders.extend([] if entry.name in LEFT_OUT else [entry.path])
            elif is_wanted(path, wanted):
                try:
                    rows += _read_rows(entry.path, path, (copies or {}).get(path))
                except OSError as error:
                    complain(error)
    return rows, unreadable[:MOST_UNREADABLE]


def _read_rows(place: str, path: str, copied: int | None) -> list[Row]:
    """Return the row of a file, or none for what does not come back. Raises OSError for a file that cannot be read."""
    status = os.lstat(place)
    unchanged = not status.st_mtime_ns and status.st_ctime_ns == copied
    if unchanged or not stat.S_ISREG(status.st_mode):
        return []
    os.close(os.open(place, os.O_RDONLY | os.O_NONBLOCK))
    mtime = min(max(0, status.st_mtime_ns), LARGEST_NUMBER)
    return [(path, status.st_mode & 0o777, mtime, status.st_size)]


def send_results(link: socket.socket, folder: str, rows: Sequence[Row]) -> None:
    """Send files when ddlrun is ready, and wait until it has them. Raises LinkError."""
    receive_line(link)
    manifest = json.dumps(rows).encode()
    digest = hashlib.sha256()
    for block in _blocks(len(manifest).to_bytes(HEAD, "big") + manifest, folder, rows):
        digest.update(block)
        link.sendall(block)
    link.sendall(digest.digest())
    receive_line(link)


def _blocks(head: bytes, folder: str, rows: Sequence[Row]) -> Iterator[bytes]:
    yield head
    for path, _, _, size in rows:
        left = size
        with contextlib.suppress(OSError), open(os.path.join(folder, path), "rb", buffering=0) as file:
            while left:
                block = file.read(min(left, BLOCK))
                if not block:
                    break
                left -= len(block)
                yield block
        state = BROKEN if left else WHOLE
        while left:
            block = bytes(min(left, BLOCK))
            left -= len(block)
            yield block
        yield state
