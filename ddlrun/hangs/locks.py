"""Locks, queues and threads that a rank waits for, in words, with what holds them."""

import re
from collections.abc import Sequence

from ddlrun.hangs.frames import find_program_frame, name_function
from ddlrun.hangs.snapshot import Frame, LockHolder, ProcessSnapshot

LOGGING = "/logging/__init__.py"
# Functions of logging whose callers have its lock, or wait for it.
WITH_LOCK = ("handle", "emit", "flush", "acquire")
# Module and function that a program calls -> what it waits for.
KINDS = {
    "queue.get": "a queue", "queue.put": "a full queue", "queue.join": "a queue", "threading.join": "a thread",
    "_base.result": "a future", "_base.as_completed": "a future", "_base.wait": "a future",
    "pool.map": "a pool", "pool.starmap": "a pool", "pool.apply": "a pool", "pool.get": "a pool",
}  # fmt: skip
# The files of a database of SQLite beside it.
SIDE_FILES = r"-(wal|shm|journal)$"


def name_lock(process: ProcessSnapshot, python: Sequence[Frame]) -> str:
    """Return the lock, queue or thread that a process waits for; `python` are the Python frames above the program's."""
    if process.holder is not None:
        return _name_file_lock(process.holder)
    if process.call == "lock":
        return f"a lock on {process.target or 'a file'}"
    if any(frame.file.endswith(LOGGING) for frame in python):
        return f"the lock of logging{_name_logging_thread(process)}"
    module, _, function = name_function(python).partition(".")
    return KINDS.get(f"{module}.{function.rpartition('.')[2]}", "a lock")


def _name_file_lock(holder: LockHolder) -> str:
    who = f"process {holder.pid} ({holder.name})" if holder.rank is None else f"rank {holder.rank}"
    file = re.sub(SIDE_FILES, "", holder.file)
    return f"a lock on {file}, which {who} holds"


def _name_logging_thread(process: ProcessSnapshot) -> str:
    """Return, in words, the other thread that is in logging; empty if there is none, as after a fork."""
    for thread in process.threads[1:]:
        inside = [frame for frame in thread.frames if frame.file.endswith(LOGGING)]
        own = find_program_frame(thread.frames)
        if own is not None and any(frame.function.rpartition(".")[2] in WITH_LOCK for frame in inside):
            name = f'thread "{thread.name}"' if thread.name else "another thread"
            return f", which {name} holds ({own.place})"
    return ""
