"""Locks on files for which a process waits, and the processes that hold them: /proc/locks, see proc_locks(5)."""

from __future__ import annotations

import os
from os import major, minor

from ddlrun.keeper.proc_files import list_folder, read_link, read_stat, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAITS, WRITE = "->", "WRITE"
RUN, RANKS = "DDLRUN_RUN", ("DDLRUN_RANK", "RANK")


class FileLock:
    """A line of /proc/locks."""

    def __init__(self, line: str) -> None:
        """Parse a line.

        >>> lock = FileLock("3: -> FLOCK  ADVISORY  WRITE 712 fe:00:55 0 EOF")
        >>> lock.number, lock.waits, lock.writes, lock.pid, lock.file
        ('3:', True, True, 712, 'fe:00:55')
        """
        words = line.split()
        self.number, self.waits = words[0], words[1] == WAITS
        *_, mode, pid, self.file, _, _ = words
        self.writes, self.pid = mode == WRITE, int(pid)


def find_holder(pid: int, call: str) -> dict[str, Any] | None:
    """Return the process with a lock on a file that another one waits for; None: there is none, or it is not known.

    A process may wait in the kernel, or sleep and try again, as SQLite does, with the file open.
    """
    if call not in ("lock", "sleep", ""):
        return None
    try:
        locks = [FileLock(line) for line in read_text("/proc/locks").splitlines()]
    except (ValueError, IndexError):  # of another kernel
        return None
    numbers = {lock.number for lock in locks if lock.waits and lock.pid == pid}
    files = _list_open_files(pid)
    for lock in locks:
        is_awaited = lock.number in numbers if call == "lock" else lock.writes and lock.file in files
        if is_awaited and not lock.waits and lock.pid not in (pid, 0, -1):
            return _describe(lock.pid, files.get(lock.file, ""))
    return None


def _list_open_files(pid: int) -> dict[str, str]:
    """Return the paths of a process's open files by their devices and inodes, as /proc/locks has them."""
    paths = {}
    for number in list_folder(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        try:
            status = os.stat(path)
        except OSError:
            continue
        device = f"{major(status.st_dev):02x}:{minor(status.st_dev):02x}"
        paths[f"{device}:{status.st_ino}"] = read_link(path)
    return paths


def _describe(pid: int, file: str) -> dict[str, Any]:
    stat = read_stat(pid)
    words = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
    environ = {name: value for name, _, value in words}
    rank = next((environ[name] for name in RANKS if name in environ), "")
    is_ours = bool(rank.isdecimal()) and environ.get(RUN) == os.environ.get(RUN)
    name = "" if stat is None else stat.name
    return {"file": file, "pid": pid, "name": name, "rank": int(rank) if is_ours else None}
