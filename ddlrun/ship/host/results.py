"""The files that ranks wrote on a host, and their way back to ddlrun."""

from __future__ import annotations

import collections
import fnmatch
import hashlib
import os
import stat
from typing import NamedTuple

from ddlrun.ship.host.link import FILES, LinkError
from ddlrun.ship.host.unpack import ArchiveError, join_small, read_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ddlrun.ship.host.link import HostLink
    from ddlrun.wire.frames import Bytes

    Reason = tuple[str, str]

CACHE, REPOSITORY = "__pycache__", ".git"
LARGEST_NUMBER = 1 << 62
# The most paths that a host names, and the most characters per path.
MOST_NAMED, LONGEST_NAME = 20, 200
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


def is_left_out(name: str) -> bool:
    """Return True for the name of a cache, or of git's folder in any case, whose hooks git would run.

    >>> [is_left_out(name) for name in ("__pycache__", ".git", ".GIT", "__PyCache__", ".github")]
    [True, True, True, False, False]
    """
    return name == CACHE or name.lower() == REPOSITORY


class Row(NamedTuple):
    """A file that a host sends back; `path` is relative to the working folder, `mtime` in ns."""

    path: str
    mode: int
    mtime: int
    size: int


class End(NamedTuple):
    """What a host reports of its files once ddlrun has them."""

    digest: str
    """The SHA-256 of their contents."""
    broken: tuple[int, ...]
    """The rows of files that could not be read to their sizes, which zeros fill up."""
    unreadable: tuple[tuple[str, str], ...]
    """Paths that cannot be read, with the reasons."""
    left: tuple[tuple[str, str], ...]
    """Paths that are not copied back, with the reasons."""


class Results(NamedTuple):
    """The files that ranks wrote on a host."""

    rows: list[Row]
    unreadable: list[Reason]
    """Paths that cannot be read, with the reasons."""
    left: list[Reason]
    """Paths that are not copied back, with the reasons; caches are not named."""


def list_results(folder: str, wanted: Sequence[str], shipped: Mapping[str, int] | None = None) -> Results:
    """Return the wanted files that ranks wrote below a folder, without unchanged `shipped` ones.

    Args:
        folder: The folder.
        wanted: The wanted paths, relative to it.
        shipped: The paths of shipped files and links, with their times of change in ns.
    """
    results = Results([], [], [])
    folders = collections.deque([folder])
    while folders:  # os.walk of Python 3.11 and older ends at the 1000th level
        above = folders.popleft()
        try:
            with os.scandir(above) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            _complain(results, os.path.relpath(above, folder), error, wanted)
            continue
        for entry in entries:
            path = os.path.relpath(entry.path, folder)
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_left_out(entry.name):
                if entry.name != CACHE and (may_hold if is_folder else is_wanted)(path, wanted):
                    results.left.append((path, "folder of git"))
            elif is_folder:
                folders.append(entry.path)
            elif is_wanted(path, wanted):
                try:
                    _add_file(results, entry.path, path, (shipped or {}).get(path))
                except OSError as error:
                    _complain(results, path, error, wanted)
    return results


def _complain(results: Results, path: str, error: OSError, wanted: Sequence[str]) -> None:
    """Add what cannot be read, unless it has vanished or holds nothing that is wanted."""
    vanished = isinstance(error, FileNotFoundError) and path != "."
    if not vanished and may_hold(path, wanted):
        results.unreadable.append((path, error.strerror or str(error)))


def _add_file(results: Results, place: str, path: str, shipped: int | None) -> None:
    """Add a file, unless it was shipped and has not changed. Raises OSError where it cannot be read."""
    status = os.lstat(place)
    if not status.st_mtime_ns and status.st_ctime_ns == shipped:
        return
    if not stat.S_ISREG(status.st_mode):
        results.left.append((path, "symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"))
        return
    os.close(os.open(place, os.O_RDONLY | os.O_NONBLOCK))
    mtime = min(max(0, status.st_mtime_ns), LARGEST_NUMBER)
    results.rows.append(Row(path, status.st_mode & 0o777, mtime, status.st_size))


def shorten(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """Return the first of very many reasons, and the number of the others.

    >>> shorten([("a" * 300, "why")] * 25)[-1]
    ('...', '5 more')
    """
    first = tuple((path[:LONGEST_NAME], reason) for path, reason in reasons[:MOST_NAMED])
    return (*first, ("...", f"{len(reasons) - MOST_NAMED} more")) if len(reasons) > MOST_NAMED else first


def send_results(link: HostLink, folder: str, results: Results) -> End:
    """Send files to ddlrun, and wait until it has closed the connection. Raises LinkError or OSError."""
    link.send(FILES, results.rows)
    broken: list[int] = []
    digest = hashlib.sha256()
    for block in join_small(_blocks(folder, results.rows, broken)):
        digest.update(block)
        link.socket.sendall(block)
    for _ in link.blocks(None):
        raise LinkError("something comes in place of the end of the connection")
    return End(digest.hexdigest(), tuple(broken), shorten(results.unreadable), shorten(results.left))


def _blocks(folder: str, rows: Sequence[Row], broken: list[int]) -> Iterator[Bytes]:
    """Yield the contents of files; add the rows to `broken` of those that cannot be read, whose rest is zeros."""
    for number, row in enumerate(rows):
        left = row.size
        try:
            with open(os.path.join(folder, row.path), "rb", buffering=0) as file:
                for block in read_blocks(file, row.size):
                    left -= len(block)
                    yield block
        except (OSError, ArchiveError):
            broken.append(number)
            with open("/dev/zero", "rb", buffering=0) as zeros:
                yield from read_blocks(zeros, left)
