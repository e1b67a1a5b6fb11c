"""The processes of a rank: targets of a signal, descendants, and causes of a SIGKILL, read from /proc."""

from __future__ import annotations

import os
from binascii import crc32

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.proc_files import ProcessStat, find_line, list_cgroups, read_link, read_stat, read_text

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "busybox", "time", "timeout", "env", "numactl"))
BUBBLEWRAP = "bwrap"
LAUNCHERS = frozenset(
    ("mpirun", "orterun", "orterun_wrapper", "prterun", "orted", "prted", "ssh", "ddlrun-root", "ddlrun-agent")
)
# Packages of Open MPI may put this before the name of its daemon.
PREFIX = "ompi-"
# The mark of a run's processes: a limit of the CPU time of real-time processes (RLIMIT_RTTIME). Children inherit it and
# keep it through exec(3), in another environment and session too. It is a checksum of the run's name plus 73,000 years,
# so that no program reaches it.
FIRST_MARK = 1 << 61
"""All marks have its first eight digits."""
MARK_LIMIT = "Max realtime timeout"
"""The name of the limit in /proc/PID/limits."""
# The files with the number of these kills, in cgroup v2 and v1.
OOM_FILES = ("memory.events", "memory.oom_control")


def plain_name(name: str) -> str:
    """Return the name of a process without the prefix of a package."""
    return name[len(PREFIX) :] if name.startswith(PREFIX) else name  # noqa: FURB188 - Python 3.8


def is_exiting(pid: int) -> bool:
    """Return True if a process is ending: the kernel closes its sockets before its parent can wait for it."""
    stat = read_stat(pid)
    return stat is None or stat.exiting


def list_processes() -> dict[int, ProcessStat]:
    """Return all processes of this host that are not zombies."""
    stats = {pid: read_stat(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    return {pid: stat for pid, stat in stats.items() if stat is not None and stat.state != "Z"}


def children_of(pid: int, processes: dict[int, ProcessStat]) -> list[int]:
    """Return the children of a process."""
    return [child for child, stat in processes.items() if stat.parent == pid]


def descendants_of(pid: int, processes: dict[int, ProcessStat]) -> list[int]:
    """Return the descendants of a process, parents before their children."""
    descendants = children_of(pid, processes)
    for child in descendants:
        descendants += children_of(child, processes)
    return descendants


def list_descendants() -> list[int]:
    """Return the living descendants of this process, parents before their children."""
    if not has_children():
        return []
    return descendants_of(os.getpid(), list_processes())


def has_children() -> bool:
    """Return True if this process has a child, be it adopted or a zombie."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def find_signal_targets(pid: int, number: int) -> list[int]:
    """Return the processes that get a signal to the program: itself and, below a shell, its children.

    Shells do not pass signals on. A shell without a handler for the signal is left out, as it would only
    die of it; SIGTERM reaches every shell. bwrap passes no signal on either, and would kill the program if it ended.
    """
    processes = list_processes()
    candidates = [pid]
    skipped = []
    for candidate in candidates:
        name = executable_name(candidate)
        children = children_of(candidate, processes)
        if name == BUBBLEWRAP and children:
            candidates += children
            skipped.append(candidate)
        if name in SHELLS:
            candidates += children
            if number != signal.SIGTERM and not handles(candidate, number):
                skipped.append(candidate)
    return [candidate for candidate in candidates if candidate not in skipped]


def signal_program(pid: int, number: int) -> None:
    """Send a signal to a program (see find_signal_targets)."""
    for target in find_signal_targets(pid, number):
        send_signal(target, number)


def executable_name(pid: int) -> str:
    """Return the file name of a process's executable, which for a script is its interpreter; empty if unknown."""
    return os.path.basename(read_link(f"/proc/{pid}/exe"))


def is_python(pid: int, name: str = "") -> bool:
    """Return True for a process whose executable, or its own name if that is not known, is that of a Python."""
    return (executable_name(pid) or name).startswith(("python", "pypy"))


def handles(pid: int, number: int) -> bool:
    """Return True if a process has a handler for a signal, which would end it otherwise."""
    handled = int(find_line(f"/proc/{pid}/status", "SigCgt:") or "0", 16)
    return bool(handled >> (number - 1) & 1)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended or belong to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def mark_of(run: str) -> int:
    """Return the mark of a run, given its name."""
    return FIRST_MARK + crc32(run.encode(errors="surrogateescape"))


def mark_process(run: str) -> None:
    """Mark this process and its future children, unless they have such a limit already."""
    import resource  # noqa: PLC0415 - for kept ranks alone

    try:
        limits = resource.getrlimit(resource.RLIMIT_RTTIME)
        if limits == (resource.RLIM_INFINITY, resource.RLIM_INFINITY):
            resource.setrlimit(resource.RLIMIT_RTTIME, (mark_of(run), resource.RLIM_INFINITY))
    except (OSError, ValueError):  # a system without this limit
        return


def read_command(pid: int) -> list[str]:
    """Return the first words of a process's command line, up to five."""
    return read_text(f"/proc/{pid}/cmdline").split("\0")[:5]


def count_oom_kills() -> int:
    """Return the number of processes of this cgroup that the kernel has killed for memory, 0 if unknown."""
    files = [f"{folder}/{name}" for folder in reversed(list_cgroups("self", "memory")) for name in OOM_FILES]
    return int(next(filter(None, (find_line(file, "oom_kill ") for file in files)), 0))


def explain_kill(pid: int, oom_kills: int, cpu_seconds: float) -> str:
    """Return the probable cause of a SIGKILL that no keeper sent, empty if unknown.

    `oom_kills` is the increase of `count_oom_kills` while the program ran, `cpu_seconds` its CPU time.
    """
    import resource  # noqa: PLC0415 - only for a killed program

    _, most_cpu = resource.getrlimit(resource.RLIMIT_CPU)
    if most_cpu != resource.RLIM_INFINITY and round(cpu_seconds) >= most_cpu:
        return f"its CPU time reached the limit of {most_cpu} s (ulimit -t)"
    if oom_kills > 0:
        return f"out of memory: the cgroup's oom_kill count rose by {oom_kills}"
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while True:
            record = os.read(log, 8192)
            if f"Killed process {pid} ".encode() in record:
                return "out of memory: the kernel's log says that it killed the process"
    except OSError:  # the end of the log
        return ""
    finally:
        os.close(log)
