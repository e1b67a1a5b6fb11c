"""Files of /proc and /sys, read with few system calls."""

from __future__ import annotations

import os

CHUNK = 1 << 16
TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")


def read_file(path: str) -> bytes:
    """Return the content of a small file, empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_lines(path: str) -> list[str]:
    """Return a file's lines, none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []


def list_folder(path: str) -> list[str]:
    """Return the names in a folder, none if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_link(path: str) -> str:
    """Return the target of a link, empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def parse_counters(text: bytes) -> dict[bytes, int]:
    r"""Parse lines of a name and a number, as cpu.stat and vmstat have them.

    >>> parse_counters(b"nr_periods 7\nnr_throttled 2\n")
    {b'nr_periods': 7, b'nr_throttled': 2}
    """
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2])))  # noqa: B905 - as fast as possible
