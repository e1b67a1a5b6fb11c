"""The open files of a process that was forked."""

from __future__ import annotations

import os


def close_files(*needed: int) -> None:
    """Close all files of this process but the given ones."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in needed:
            _close(int(name))


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:  # the folder that was listed
        return
