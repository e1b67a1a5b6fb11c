"""The format of archives, and their extraction.

An archive is the length of its manifest in 8 bytes, the manifest as JSON, and the contents of all files one after the
other. The manifest is a list of entries: [kind, path, mode, mtime, size, target, prefix], with paths relative to /. The
kinds are d (folder), f (file) and l (symbolic link). The prefix is null or, for a file that contains the path of a
conda environment, that path and the bytes for it in a binary file, null for a text.

conda writes the folder of an environment, its prefix, into files that were built for a placeholder. In a binary file
each string with the prefix is as long as it was with the placeholder: null bytes fill the rest.
"""

from __future__ import annotations

import json
import os
import re
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    from ddlrun.wire.frames import Bytes

    class ByteSource(Protocol):
        """The bytes of an archive or a file."""

        def read(self, most: int, /) -> Bytes:
            """Return the next bytes, at most some; none at the end."""


HEAD = 8
FOLDER, FILE, LINK = "d", "f", "l"
BLOCK = 1 << 18
LONGEST_MANIFEST = 1 << 30
# Linux before 5.1 cuts a longer first line of a script.
LONGEST_SHEBANG = 127


class ArchiveError(Exception):
    """An archive that cannot be extracted; the text says why."""


def unpack(source: ByteSource, folder: str, place: str) -> None:
    """Extract an archive into a folder, which is new.

    Nothing is written outside: links are made when all files have been written. Raises ArchiveError or OSError.

    Args:
        source: The archive.
        folder: The folder.
        place: The path that the folder will have, for files that contain the path of a conda environment.
    """
    length = int.from_bytes(_read(source, HEAD), "big")
    if length > LONGEST_MANIFEST:
        raise ArchiveError("its manifest is too long")
    try:
        entries = json.loads(_read(source, length))
    except ValueError as error:
        raise ArchiveError("it was altered on the way") from error
    made = {folder}
    for kind, path, mode, mtime, size, _, prefix in entries:
        target = _inside(folder, path)
        _make_folders(target if kind == FOLDER else os.path.dirname(target), made)
        if kind == FILE:
            blocks = read_blocks(source, size)
            if prefix is not None:
                moved, longest = prefix
                blocks = iter([replace_prefix(b"".join(blocks), moved, place + moved, longest)])
            _write_file(blocks, target)
            _finish(target, mode, mtime)
    for kind, path, _, _, _, target, _ in entries:
        if kind == LINK:
            os.symlink(target, _inside(folder, path))
    for kind, path, mode, mtime, *_ in reversed(entries):
        if kind == FOLDER:
            _finish(_inside(folder, path), mode, mtime)


def _make_folders(path: str, made: set[str]) -> None:
    if path not in made:
        os.makedirs(path, mode=0o755, exist_ok=True)
        made.add(path)


def _write_file(blocks: Iterator[Bytes], path: str) -> None:
    with open(path, "xb", buffering=0) as file:
        for block in blocks:
            while block:
                block = block[file.write(block) :]  # noqa: PLW2901 - the rest of it


def _finish(path: str, mode: int, mtime: int) -> None:
    os.utime(path, (mtime, mtime))
    os.chmod(path, mode & 0o777)


def _inside(folder: str, path: str) -> str:
    """Return the place of an entry. Raises ArchiveError where that is not inside of the folder."""
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise ArchiveError(f"it contains the path {path!r}")
    return os.path.join(folder, path)


def join_small(blocks: Iterable[Bytes]) -> Iterator[bytes]:
    """Yield the bytes of blocks in blocks that are not small, so that few system calls send them."""
    small: list[Bytes] = []
    waiting = 0
    for block in blocks:
        small.append(block)
        waiting += len(block)
        if waiting >= BLOCK:
            yield b"".join(small)
            small, waiting = [], 0
    if small:
        yield b"".join(small)


def read_blocks(source: ByteSource, size: int) -> Iterator[Bytes]:
    """Yield some bytes of a source. Raises ArchiveError where it has fewer."""
    while size:
        block = source.read(min(size, BLOCK))
        if not block:
            raise ArchiveError("it ends too early")
        size -= len(block)
        yield block


def _read(source: ByteSource, size: int) -> bytes:
    return b"".join(read_blocks(source, size))


def link_files(tree: str, target: str, is_copied: Callable[[str, int], bool]) -> dict[str, int]:
    """Make the folders of a tree in another folder, with copies of its files or links to them.

    What is there already stays. Files whose place and size are `is_copied` may be changed. Returns the paths of what
    was made, with the times of change in ns; the time of modification is 0.
    """
    made: dict[str, int] = {}
    os.makedirs(target, mode=0o755, exist_ok=True)
    for entry in _entries(tree):
        place = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False) and not os.path.islink(place):
            made.update(link_files(entry.path, place, is_copied))
        elif os.path.lexists(place):
            continue
        elif entry.is_symlink():
            made[place] = make_link(os.readlink(entry.path), place)
        elif is_copied(place, entry.stat().st_size):
            shutil.copyfile(entry.path, place)
            os.chmod(place, entry.stat().st_mode & 0o777 | 0o200)
            made[place] = _reset_time(place)
        else:
            made[place] = make_link(entry.path, place)
    return made


def make_link(target: str, place: str) -> int:
    """Make a symbolic link; return its time of change in ns."""
    os.symlink(target, place)
    return _reset_time(place)


def _reset_time(place: str) -> int:
    """Set the time of modification to 0, so that a change shows at once; return the time of change in ns."""
    os.utime(place, (0, 0), follow_symlinks=False)
    return os.lstat(place).st_ctime_ns


def _entries(folder: str) -> Iterable[Any]:
    with os.scandir(folder) as entries:
        return list(entries)


def replace_prefix(content: bytes, old: str, new: str, longest: int | None) -> bytes:
    """Return the content of a file with another prefix.

    Args:
        content: The content.
        old: The prefix in it.
        new: The prefix in place of it, which is not longer than the placeholder.
        longest: The length of the placeholder of a binary file; None: this is a text.
    """
    pattern, place = re.escape(os.fsencode(old)) + rb"(?![\w-])", os.fsencode(new)
    if longest is None:
        return shorten_shebang(re.sub(pattern, lambda _: place, content))
    padding = longest - len(os.fsencode(old))

    def replace_string(match: re.Match[bytes]) -> bytes:
        text = match[0].rstrip(b"\0")
        moved, count = re.subn(pattern, lambda _: place, text)
        if len(match[0]) - len(text) <= count * padding:  # not from a placeholder
            return match[0]
        return moved.ljust(len(match[0]), b"\0")

    return re.sub(pattern + rb"[^\0]*\0+", replace_string, content)


def shorten_shebang(content: bytes) -> bytes:
    r"""Return a script that finds its interpreter on PATH if its first line is too long.

    >>> shorten_shebang(b"#!/" + b"long/" * 30 + b"bin/perl -w\n")
    b'#!/usr/bin/env -S perl -w\n'
    """
    match = re.match(rb"#! ?(\S+)([^\n]*)", content)
    if match is None or len(match[0]) <= LONGEST_SHEBANG:
        return content
    option = b"-S " if match[2].strip() else b""
    return b"#!/usr/bin/env " + option + os.path.basename(match[1]) + match[2] + content[match.end() :]
