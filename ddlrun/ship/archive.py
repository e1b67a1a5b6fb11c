"""Archives: the entries of a source as one stream of bytes, and its hash.

An index in the state folder has the hashes of earlier archives, so that files are read only where one has changed. It
also has those of environments of lock files, by the folders in which an installer makes or removes something for each
package: a launch need not look at their thousands of files.
"""

import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ddlrun.errors import InputError, PreflightError
from ddlrun.ship.files import Entry
from ddlrun.ship.host.unpack import FILE, HEAD, ArchiveError, join_small, read_blocks
from ddlrun.ship.request import ShipSource

INDEX = "archives.json"
MOST_INDEXED = 100
# A file that has changed this recently may change again without a sign of it.
RECENT_SECONDS = 2.0
# What a file needs on a disk beside its bytes.
FILE_OVERHEAD = 4096


@dataclass(frozen=True, slots=True)
class Archive:
    """A source that is ready to travel."""

    source: ShipSource
    entries: tuple[Entry, ...] | None
    """None: its files were not looked at, so that it cannot be sent."""
    digest: str
    size: int
    files: int
    """The number of entries."""

    @property
    def space(self) -> int:
        """The bytes that it needs on a disk."""
        return self.size + FILE_OVERHEAD * self.files

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the archive. Raises PreflightError where a file has changed."""
        return archive_blocks(self.entries or ())


def make_archive(source: ShipSource, entries: Sequence[Entry], state: str) -> Archive:
    """Return the archive of a source. Files are read only where one has changed since the last time."""
    fingerprint = _fingerprint(entries)
    known = find_archive(source, fingerprint, state)
    if known is not None:
        return replace(known, entries=tuple(entries))
    size = HEAD + len(_manifest(entries)) + sum(entry.size for entry in entries)
    archive = Archive(source, tuple(entries), _hash(entries), size, len(entries))
    if not any(_is_recent(entry) for entry in entries):
        note_archive(archive, fingerprint, state)
    return archive


def find_archive(source: ShipSource, fingerprint: str, state: str) -> Archive | None:
    """Return the archive of a source by its fingerprint, without its entries; None where it is not known."""
    known = _read_index(state).get(fingerprint)
    if known is None:
        return None
    archive = Archive(source, None, str(known["digest"]), int(known["size"]), int(known["files"]))
    note_archive(archive, fingerprint, state)
    return archive


def fingerprint_of_packages(folder: str) -> str:
    """Return a hash that changes when a package of an environment is installed, removed or replaced. Raises OSError."""
    folders = [folder, f"{folder}/bin", *sorted(glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages"))]
    marks = [(path, status.st_mtime_ns, status.st_ctime_ns) for path in folders for status in [os.stat(path)]]
    return hashlib.sha256(os.fsencode(repr(marks))).hexdigest()


def archive_blocks(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Yield the bytes of an archive. Raises PreflightError where a file has changed, InputError where it is gone."""
    manifest = _manifest(entries)
    yield len(manifest).to_bytes(HEAD, "big") + manifest
    yield from join_small(block for entry in entries if entry.kind == FILE for block in _file_blocks(entry))


def _manifest(entries: Sequence[Entry]) -> bytes:
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        prefix = None if entry.prefix is None else (entry.prefix.path, entry.prefix.longest)
        rows.append((entry.kind, entry.path[1:], entry.mode, entry.mtime, entry.size, entry.target, prefix))
    return json.dumps(rows, separators=(",", ":")).encode()


def _file_blocks(entry: Entry) -> Iterator[bytes | memoryview]:
    if entry.content is not None:
        yield entry.content
        return
    try:
        with open(entry.source, "rb", buffering=0) as file:
            yield from read_blocks(file, entry.size)
    except ArchiveError:
        raise PreflightError(f"`--ship`: {entry.source} became shorter while it was read; start again") from None
    except OSError as error:
        raise InputError(f"`--ship`: {entry.source}: {error.strerror}") from error


def _hash(entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256()
    for block in archive_blocks(entries):
        digest.update(block)
    return digest.hexdigest()


def _fingerprint(entries: Sequence[Entry]) -> str:
    """Return a hash of the numbers by which a change of a file is noticed without reading it."""
    digest = hashlib.sha256(_manifest(entries))
    for entry in entries:
        digest.update(repr((entry.path, entry.identity, entry.content)).encode(errors="backslashreplace"))
    return digest.hexdigest()


def _is_recent(entry: Entry) -> bool:
    return bool(entry.identity) and entry.identity[2] > (time.time() - RECENT_SECONDS) * 1e9


def _read_index(state: str) -> dict[str, dict[str, Any]]:
    try:
        with open(f"{state}/{INDEX}", encoding="utf-8") as file:
            index = json.load(file)
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def note_archive(archive: Archive, fingerprint: str, state: str) -> None:
    """Make an archive the last one in the index; where that cannot be written, files are read again the next time."""
    index = _read_index(state)
    index.pop(fingerprint, None)
    index[fingerprint] = {"digest": archive.digest, "size": archive.size, "files": archive.files}
    for key in list(index)[:-MOST_INDEXED]:
        del index[key]
    temporary = f"{state}/{INDEX}.{os.getpid()}"
    with suppress(OSError):
        os.makedirs(state, mode=0o700, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(index, file)
        os.replace(temporary, f"{state}/{INDEX}")
