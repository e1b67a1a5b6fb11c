"""A host's facts for the checks before a job, a task (agent/tasks.py).

Hosts may have no ddlrun: it imports the standard library alone, and as little as possible of that. A new process takes
longer than most facts: only programs that must run are started.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import _thread  # and threading 3 ms
import binascii
import os
import resource
import time

from ddlrun.keeper import tcp_connections
from ddlrun.preflight.host_addresses import list_addresses
from ddlrun.preflight.host_files import find_program, is_program, read_bytes, read_line
from ddlrun.preflight.host_python import describe_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

RUN = "DDLRUN_RUN"
RESOLVE_SECONDS = 8.0
# SIGPIPE and SIGXFSZ, which Python ignores: programs would too.
_IGNORED = (13, 25)


def main(task: Mapping[str, Any]) -> dict[str, str]:
    """Return the output of the script about the machine, and the other facts as lines `@KEY VALUE`.

    The task has the fields of FactsRequest, and the script `machine` with its `variables`.
    """
    clock = time.time()
    machine = start(["sh", "-c", task["machine"]], {**os.environ, **task["variables"]})
    manager = task["manager"]
    version = start([manager, "--version"]) if is_program(manager) else None
    image = start(["sh", "-c", task["image"]]) if find_program(task["runtime"], "") else None
    names = start_resolving([os.uname().nodename, *task["names"]])
    lines = [f"clock {clock}", f"hostname {os.uname().nodename}", *_own_facts(task)]
    if version is not None:
        lines.append("manager " + version().output.partition("\n")[0])
    if image is not None:
        lines.append("container " + ("runtime" if image().code else "image"))
    for name, addresses in names().items():
        lines.append(" ".join(["name", name, *addresses]))
    return {"machine": machine().output, "own": "".join(f"@{' '.join(line.split())}\n" for line in lines)}


def _own_facts(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts that need no other process."""
    yield from _kernel()
    if is_program(os.path.join(os.path.dirname(task["manager"]), task["daemon"])):
        yield "daemon"
    yield from describe_python(task)
    yield from _files(task["folder"], task["program"], task["path"])
    yield "driver " + read_line("/proc/driver/nvidia/version")
    yield from _rooms(task["logs"])
    locked, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE))
    yield "limit memlock " + ("unlimited" if locked == resource.RLIM_INFINITY else str(locked >> 10))
    yield f"limit files {files}"
    yield from (f"net {address}" for address in list_addresses())
    yield " ".join(["ports", *list_ports()])
    yield from _leftovers()


def _kernel() -> Iterator[str]:
    try:
        namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "uts", "ipc")]
    except OSError:
        return
    yield " ".join(["kernel", read_line("/proc/sys/kernel/random/boot_id"), *namespaces])


def _files(folder: str, program: str | None, path: str | None) -> Iterator[str]:
    """Yield the facts of the working folder and of a script, or another program, in it."""
    if os.path.isdir(folder):
        yield "folder"
    else:
        folder = ""
    if program and program.endswith(".py"):
        try:
            content = read_bytes(os.path.join(folder, program))
        except OSError:
            return
        yield f"content {binascii.crc32(content)} {len(content)}"
    elif program and (file := find_program(program, folder, path)):
        yield f"program {file}"


def _rooms(logs: str | None) -> Iterator[str]:
    """Yield the free KiB of the folders for shared memory, temporary files and the run."""
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the folder where there is no other
    if not os.path.isdir(temporary) or not os.access(temporary, os.W_OK):
        yield f"unwritable {temporary}"
    while logs and not os.path.isdir(logs):
        logs = os.path.dirname(logs)
    for name, folder in {"shm": "/dev/shm", "temporary": temporary, "logs": logs}.items():  # noqa: S108 - a name
        try:
            space = os.statvfs(folder or "")
        except OSError:
            continue
        yield f"room {name} {space.f_bavail * space.f_frsize >> 10} {folder}"


def list_ports() -> list[str]:
    """Return the local TCP ports in use from 0x4000 to 0x7FFF, in hexadecimal."""
    try:
        ports = tcp_connections.list_ports()
    except OSError:  # a sandbox
        ports = set(_read_ports())
    return [f"{port:04X}" for port in sorted(ports) if 0x4000 <= port < 0x8000]


def _read_ports() -> Iterator[int]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = read_bytes(table).decode().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        yield from (int(line.split(":", 3)[2][:4], 16) for line in lines)


def _leftovers() -> Iterator[str]:
    """Yield the processes of other runs of this user in this network namespace."""
    mark, own, network, user = f"\0{RUN}=".encode(), os.environ.get(RUN, ""), "ns/net", os.geteuid()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        process = f"/proc/{pid}"
        try:
            _, marked, after = (b"\0" + read_bytes(f"{process}/environ")).partition(mark)
            run = after.partition(b"\0")[0].decode(errors="replace")
            if not marked or run in ("", own) or os.stat(process).st_uid != user:
                continue
            if not os.path.samefile(f"{process}/{network}", f"/proc/self/{network}"):
                continue
            words = read_bytes(f"{process}/cmdline").decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is another user's
            continue
        yield " ".join(["left", pid, run, *words])


class Ended:
    """A program that has ended."""

    def __init__(self, code: int, output: str) -> None:
        self.code, self.output = code, output


def start(argv: list[str], environ: Mapping[str, str] | None = None) -> Callable[[], Ended]:
    """Start a program without input; return a function that waits for its end."""
    out, end = os.pipe()
    files = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, end, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    )
    environ = {**os.environ, "LC_ALL": "C"} if environ is None else environ
    pid = 0
    try:
        pid = os.posix_spawnp(argv[0], argv, environ, file_actions=files, setsigdef=_IGNORED)
    except OSError:  # there is no output
        pass
    finally:
        os.close(end)

    def finish() -> Ended:
        with open(out, "rb") as file:
            output = file.read().decode(errors="replace")
        return Ended(os.waitpid(pid, 0)[1] if pid else 127, output)

    return finish


def start_resolving(names: Sequence[str]) -> Callable[[], dict[str, list[str]]]:
    """Start resolving names, at once, as an unknown name takes seconds; return a function that waits for the results.

    A thread that does not end in time is left alone.
    """
    addresses: dict[str, list[str]] = {}
    locks = {name: _thread.allocate_lock() for name in names}
    flags = _socket.AI_ADDRCONFIG | _socket.AI_V4MAPPED

    def resolve(name: str) -> None:
        try:  # from bytes: for text, Python loads a codec
            entries = _socket.getaddrinfo(os.fsencode(name), None, 0, _socket.SOCK_STREAM, 0, flags)
            addresses[name] = [str(entry[4][0]) for entry in entries]
        except (OSError, ValueError):
            addresses[name] = []
        finally:
            locks[name].release()

    for name, lock in locks.items():
        lock.acquire()
        _thread.start_new_thread(resolve, (name,))
    end = time.monotonic() + RESOLVE_SECONDS

    def finish() -> dict[str, list[str]]:
        for lock in locks.values():
            lock.acquire(timeout=max(0.0, end - time.monotonic()))
        return {name: addresses.get(name, []) for name in locks}

    return finish
