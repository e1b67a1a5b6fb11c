"""Files and programs of this host; a part of the task host_facts.py."""

from __future__ import annotations

import os

CHUNK = 1 << 16


def is_program(path: str) -> bool:
    """Return True for the path of a program that this user may run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_program(name: str, folder: str, path: str | None = None) -> str | None:
    """Return the path of a program, relative to a folder or on a search path; None where there is none."""
    places = [""] if "/" in name else (path or os.environ.get("PATH", os.defpath)).split(os.pathsep)
    paths = (os.path.join(folder, place, name) for place in places if name)
    return next(filter(is_program, paths), None)


def read_bytes(path: str) -> bytes:
    """Return the contents of a file. Raises OSError."""
    file = os.open(path, os.O_RDONLY)  # a third of the time of open(), which counts with many processes
    try:
        parts = list(iter(lambda: os.read(file, CHUNK), b""))
    finally:
        os.close(file)
    return b"".join(parts)


def read_line(path: str) -> str:
    """Return the first line of a file; empty if it cannot be read."""
    try:
        return read_bytes(path).decode(errors="replace").partition("\n")[0]
    except OSError:
        return ""
