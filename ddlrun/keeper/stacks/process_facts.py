"""Facts about a process from /proc: its system call, busy time and GPUs, and connections that wait for a reply."""

from __future__ import annotations

import os

from ddlrun.keeper.proc_files import list_folder, read_file, read_link, read_text
from ddlrun.keeper.tcp_connections import CONNECTING, read_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

NANOSECONDS = 1e-9
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
# The same data was sent so many times again, which takes more than a second.
LEAST_RETRANSMISSIONS = 3
MOST_CONNECTIONS = 64
# Names of the calls that block on files, by their numbers; the numbers of aarch64 are those of all newer architectures.
_X86_64 = {0: "read", 1: "write", 2: "open", 45: "recvfrom", 44: "sendto", 42: "connect", 257: "openat", 202: "futex",
           230: "sleep", 35: "sleep", 7: "poll", 271: "poll", 232: "poll", 281: "poll", 23: "poll", 270: "poll",
           61: "wait", 247: "wait", 19: "read", 17: "read", 20: "write", 18: "write", 47: "recvfrom", 46: "sendto",
           288: "accept", 43: "accept", 72: "lock", 73: "lock"}  # fmt: skip
_GENERIC = {63: "read", 64: "write", 56: "openat", 207: "recvfrom", 206: "sendto", 203: "connect", 98: "futex",
            115: "sleep", 101: "sleep", 73: "poll", 22: "poll", 72: "poll", 260: "wait", 95: "wait", 65: "read",
            66: "write", 67: "read", 68: "write", 212: "recvfrom", 211: "sendto", 242: "accept", 25: "lock",
            32: "lock"}  # fmt: skip
_PPC64 = {3: "read", 4: "write", 5: "open", 286: "openat", 221: "futex", 162: "sleep", 248: "sleep", 167: "poll",
          238: "poll", 303: "poll", 7: "wait", 114: "wait", 272: "wait", 337: "recvfrom", 335: "sendto",
          328: "connect", 143: "lock"}  # fmt: skip
CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "ppc64le": _PPC64}
# Calls whose first argument is a descriptor.
ON_FILES = ("read", "write", "recvfrom", "sendto", "connect", "accept", "lock")


def read_call(pid: int) -> dict[str, str]:
    """Return the system call in which the first thread of a process is, and the file that it is about.

    The call has the same name on all architectures; empty: the process runs, or the call is another one. The file is a
    path, pipe:[N] or socket:[N].
    """
    number, argument, *_ = [*read_text(f"/proc/{pid}/syscall").split(), "", ""]
    name = CALLS.get(os.uname().machine, {}).get(int(number), "") if number.isdecimal() else ""
    target = read_link(f"/proc/{pid}/fd/{int(argument, 16)}") if name in ON_FILES else ""
    return {"call": name, "target": _find_peer(target) if name == "connect" else target}


def _find_peer(target: str) -> str:
    """Return the address to which a socket connects; the socket itself if it is none of TCP."""
    try:
        connections = [link for link in read_connections(CONNECTING) if f"socket:[{link.inode}]" == target]
    except OSError:
        return target
    return f"{connections[0].theirs}:{connections[0].their_port}" if connections else target


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
    return any(target.startswith(GPU_FILES) for target in _open_files(pid))


def _open_files(pid: int) -> list[str]:
    """Return the targets of a process's descriptors."""
    folder = f"/proc/{pid}/fd"
    return [read_link(f"{folder}/{fd}") for fd in list_folder(folder)]


def list_unacknowledged(pids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the connections of processes on which data has been sent several times without a reply."""
    targets = {target for pid in pids for target in _open_files(pid)}
    try:
        again = [link for link in read_connections() if link.retransmissions >= LEAST_RETRANSMISSIONS]
    except OSError:
        return []
    dead = [link for link in again if f"socket:[{link.inode}]" in targets]
    return [{"local": link.ours, "remote": link.theirs} for link in dead[:MOST_CONNECTIONS]]
