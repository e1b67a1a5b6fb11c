"""Reaper of a cluster: holds the switch's namespaces, and removes the cluster when its input ends.

    unshare --net python reaper.py FOLDER

Prints "ready" and reads one process id per line, each of a process that holds the network namespace of a host.
The input ends with `Namespaces.close`, and also when the Python that writes it ends in any way, SIGKILL included.
The reaper then kills all processes in these namespaces and removes the folder. It imports the standard library alone.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = 300.0


def processes(namespaces: Iterable[int]) -> set[int]:
    """Return the processes in network namespaces, which are given by their inodes."""
    inodes = set(namespaces)
    pids = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                pids.add(int(pid))
    return pids


def kill_all(namespaces: Iterable[int]) -> None:
    """Kill all other processes in the namespaces, and wait until none is left."""
    inodes = set(namespaces)
    deadline = time.monotonic() + PATIENCE
    while (pids := processes(inodes) - {os.getpid()}) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def main() -> None:
    """Wait for the end of the input, with all namespaces open: an inode in use is never given to another one."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    opened = [os.open("/proc/self/ns/net", os.O_RDONLY)]
    for line in sys.stdin:
        with contextlib.suppress(OSError):  # its holder has ended already
            opened.append(os.open(f"/proc/{line.strip()}/ns/net", os.O_RDONLY))
    kill_all(os.fstat(namespace).st_ino for namespace in opened)
    shutil.rmtree(Path(sys.argv[1]), ignore_errors=True)


if __name__ == "__main__":
    main()
