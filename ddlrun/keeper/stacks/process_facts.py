"""Facts about a process from /proc: its system call, counters and GPUs, and connections that wait for a reply."""

from __future__ import annotations

import os

from ddlrun.keeper.proc_files import list_folder, parse_counters, read_file, read_link, read_text
from ddlrun.keeper.tcp_connections import CONNECTING, read_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ddlrun.keeper.proc_files import ProcessStat
    from ddlrun.keeper.tcp_connections import TcpConnection

NANOSECONDS = 1e-9
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
# The same data was sent so many times again, which takes more than a second.
LEAST_RETRANSMISSIONS = 3
MOST_CONNECTIONS = 64
MOST_THREADS = 512
# The lines of /proc/PID/io that are used: of system calls, and of storage.
IO = ("rchar", "wchar", "read_bytes", "write_bytes")
# The memory that is read and written by all processes, in KiB of disks, and in pages of network file systems, too.
STORAGE = {b"pgpgin": 1 << 10, b"pgpgout": 1 << 10, b"nr_written": 1 << 12}
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


def read_counters(pid: int, stat: ProcessStat, links: Sequence[TcpConnection]) -> dict[str, Any]:
    """Return the counters of a process with some connections; see Counters in hangs/snapshot.py."""
    read, written, loaded, stored = _read_io(f"/proc/{pid}/io")
    first = _read_io(f"/proc/{pid}/task/{pid}/io")
    return {
        "threads": read_times(pid),
        "ended": stat.ended_ms / 1000,
        "read": read,
        "written": written,
        "stored": loaded + stored,
        "received": sum(link.received for link in links),
        "sent": sum(link.acknowledged for link in links),
        "first": first[0] + first[1],
        "faults": int((read_file(f"/proc/{pid}/task/{pid}/stat").rpartition(b")")[2].split() or [b"0"] * 8)[7]),
        "mpi": "/libmpi" in read_text(f"/proc/{pid}/maps"),
    }


def read_times(pid: int) -> dict[int, list[float]]:
    """Return the seconds in which each thread of a process had a CPU, and those in which it waited for one."""
    threads = list_folder(f"/proc/{pid}/task")[:MOST_THREADS]
    words = {int(thread): read_file(f"/proc/{pid}/task/{thread}/schedstat").split() for thread in threads}
    return {thread: [round(int(word) * NANOSECONDS, 3) for word in it[:2]] for thread, it in words.items() if it}


def _read_io(path: str) -> tuple[int, ...]:
    """Return the bytes that a process or thread has read and written, and its children that have ended; 0: not known.

    Those of storage show the progress of a single system call, too.
    """
    numbers = parse_counters(read_file(path).replace(b":", b""))
    return tuple(numbers.get(name.encode(), 0) for name in IO)


def read_storage() -> int:
    """Return the bytes that all processes of the host have read from storage and written to it."""
    numbers = parse_counters(read_file("/proc/vmstat"))
    return sum(numbers.get(name, 0) * size for name, size in STORAGE.items())


def uses_gpu(pid: int) -> bool:
    """Return True if a process has opened a GPU."""
    return any(target.startswith(GPU_FILES) for target in _open_files(pid))


def _open_files(pid: int) -> list[str]:
    """Return the targets of a process's descriptors."""
    folder = f"/proc/{pid}/fd"
    return [read_link(f"{folder}/{fd}") for fd in list_folder(folder)]


def list_links(pids: Sequence[int]) -> dict[int, list[TcpConnection]]:
    """Return the TCP connections of processes; one that several have open is the first one's."""
    links: dict[int, list[TcpConnection]] = {pid: [] for pid in pids}
    owners = {target: pid for pid in reversed(pids) for target in _open_files(pid)}
    try:
        for link in read_connections():
            if f"socket:[{link.inode}]" in owners:
                links[owners[f"socket:[{link.inode}]"]].append(link)
    except OSError:  # a sandbox
        pass
    return links


def list_unacknowledged(links: Sequence[TcpConnection]) -> list[dict[str, Any]]:
    """Return the connections on which data has been sent several times without a reply."""
    dead = [link for link in links if link.retransmissions >= LEAST_RETRANSMISSIONS]
    return [{"local": link.ours, "remote": link.theirs} for link in dead[:MOST_CONNECTIONS]]
