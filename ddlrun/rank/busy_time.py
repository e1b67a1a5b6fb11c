"""The time in which a process computes, and the GPUs that it has opened."""

from __future__ import annotations

from ddlrun.rank.proc_files import list_folder, read_file, read_link

NANOSECONDS = 1e-9
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


def read_busy_time(pid: int) -> float:
    """Return the seconds in which the threads of a process had a CPU or were ready to run, 0 if that is not known.

    It is about the same on a busy machine as on an idle one.
    """
    folder = f"/proc/{pid}/task"
    words = (read_file(f"{folder}/{thread}/schedstat").split() for thread in list_folder(folder))
    return sum(int(running) + int(ready) for running, ready, *_ in filter(None, words)) * NANOSECONDS


def uses_gpu(pid: int) -> bool:
    """Return True if a process has opened a GPU."""
    folder = f"/proc/{pid}/fd"
    return any(read_link(f"{folder}/{fd}").startswith(GPU_FILES) for fd in list_folder(folder))
