"""The files that ranks wrote on a host, and their way back to ddlrun.

They travel as a stream: the length of its manifest in 8 bytes, the manifest as JSON, the contents of all files one
after the other, and the SHA-256 of all that. The manifest is a list of [path, mode, mtime in ns, size], with paths
relative to the working folder.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat

from ddlrun.ship.host.link import LinkError, receive_line
from ddlrun.ship.host.unpack import BLOCK, HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Sequence

    Row = tuple[str, int, int, int]

# Folders that do not come back: caches, and the folder whose hooks git would run.
LEFT_OUT = frozenset(("__pycache__", ".git"))
DIGEST_BYTES = 32
# The unreadable files that a host names, at most.
MOST_UNREADABLE = 20


def is_wanted(path: str, wanted: Iterable[str]) -> bool:
    """Return True for a path that is one of the wanted ones, below one, or matches one with wildcards.

    No path outside of the folder to which they are relative is wanted.

    >>> [is_wanted(path, ["out", "*.csv"]) for path in ("out/a", "outer", "x.csv")], is_wanted("a", ["."])
    ([True, False, True], True)
    """
    return any(name in (".", path) or path.startswith(f"{name}/") or fnmatch.fnmatchcase(path, name) for name in wanted)


def list_results(folder: str, wanted: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return the rows of the wanted files that ranks wrote below a folder, and the paths that cannot be read.

    Files that were shipped are links there, or copies with the time 0, and neither comes back.
    """
    rows: list[Row] = []
    unreadable = []
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            place = os.path.join(above, name)
            path = os.path.relpath(place, folder)
            status = os.lstat(place)
            if not stat.S_ISREG(status.st_mode) or not status.st_mtime_ns or not is_wanted(path, wanted):
                continue
            if os.access(place, os.R_OK):
                rows.append((path, status.st_mode & 0o777, status.st_mtime_ns, status.st_size))
            else:
                unreadable.append(path)
    return rows, unreadable[:MOST_UNREADABLE]


def send_results(link: socket.socket, folder: str, rows: Sequence[Row]) -> None:
    """Send files when ddlrun is ready, and wait until it has them. Raises LinkError, also where a file has changed."""
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
        with open(os.path.join(folder, path), "rb", buffering=0) as file:
            while size:
                block = file.read(min(size, BLOCK))
                if not block:
                    raise LinkError(f"{path} became shorter while it was read")
                size -= len(block)  # noqa: PLW2901 - the rest of it
                yield block
