"""The time in which a process computes, the bytes that it reads and writes, and the GPUs that it has opened."""

from __future__ import annotations

from ddlrun.keeper.proc_files import list_folder, read_file, read_link

NANOSECONDS = 1e-9
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


def read_busy_time(pid: int) -> float:
    """Return the seconds in which the threads of a process had a CPU or were ready to run, 0 if that is not known.

    It is about the same on a busy machine as on an idle one.
    """
    folder = f"/proc/{pid}/task"
    words = (read_file(f"{folder}/{thread}/schedstat").split() for thread in list_folder(folder))
    return sum(int(running) + int(ready) for running, ready, *_ in filter(None, words)) * NANOSECONDS


def read_transferred(pid: int) -> int:
    """Return the bytes that a process, and its children that have ended, have read and written; 0: not known.

    Those of a device count twice. They show the progress of a single system call, too.
    """
    numbers = [int(line.rpartition(b" ")[2]) for line in read_file(f"/proc/{pid}/io").splitlines()]
    return sum(numbers[:2] + numbers[4:6])  # rchar, wchar; read_bytes, write_bytes


def uses_gpu(pid: int) -> bool:
    """Return True if a process has opened a GPU."""
    folder = f"/proc/{pid}/fd"
    return any(read_link(f"{folder}/{fd}").startswith(GPU_FILES) for fd in list_folder(folder))
