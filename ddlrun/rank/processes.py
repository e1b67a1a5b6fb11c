"""The processes of one rank, read from /proc: whom a signal is for, what is left, where they stand."""

from __future__ import annotations

import os
import signal
import time

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "busybox", "time", "timeout", "env", "numactl"))
LAUNCHERS = frozenset(("mpirun", "orterun", "prterun", "orted", "prted", "ssh"))
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
DUMP_SECONDS = 15


def _status(pid: int) -> tuple[str, str, int] | None:
    """Return a process's name, state letter and parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    state, parent = text[text.rindex(")") + 1 :].split()[:2]
    return name, state, int(parent)


def exiting(pid: int) -> bool:
    """Tell whether a process is about to end: the kernel closes its sockets before anybody can wait for it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & 4)  # PF_EXITING


def _all() -> dict[int, tuple[str, str, int]]:
    found = {pid: _status(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    return {pid: status for pid, status in found.items() if status is not None and status[1] != "Z"}


def _children(pid: int, alive: dict[int, tuple[str, str, int]]) -> list[int]:
    return [child for child, (_, _, parent) in alive.items() if parent == pid]


def strays() -> list[int]:
    """Return all descendants of this process that live, children before their own."""
    if not has_children():
        return []
    alive = _all()
    found = _children(os.getpid(), alive)
    for pid in found:
        found += _children(pid, alive)
    return found


def has_children() -> bool:
    """Tell whether any process is left of what this one started, or was made the parent of."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def targets(pid: int, number: int) -> list[int]:
    """Return whom a signal to the program is for: itself and, as shells do not pass it on, what those run.

    A shell that does not handle a signal other than TERM is left out: it would only die of it.
    """
    alive = _all()
    found = [pid]
    shells = []
    for one in found:
        if _program(one) in SHELLS:
            found += _children(one, alive)
            if number != signal.SIGTERM and not _handles(one, number):
                shells.append(one)
    return [one for one in found if one not in shells]


def _program(pid: int) -> str:
    """Return the name of the file that a process runs; that of a script is its interpreter's."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def _handles(pid: int, number: int) -> bool:
    caught = [line.split()[1] for line in lines_of(f"/proc/{pid}/status") if line.startswith("SigCgt:")]
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def kill_run(run: str) -> None:
    """Kill every process on this host that carries the run's id, but for keepers, mpirun and its daemons."""
    mark = f"DDLRUN_RUN={run}".encode()
    for pid, (name, _, _) in _all().items():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = run and mark in file.read().split(b"\0")
            if marked and name not in LAUNCHERS and START not in _first_words(pid):
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def end_daemon(pid: int) -> None:
    """End mpirun's daemon, our parent, which cannot notice for minutes that the network is cut."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if os.getppid() != pid or (_status(pid) or ("",))[0] not in LAUNCHERS:
            return
        os.kill(pid, number)
        time.sleep(1)


def _first_words(pid: int) -> list[str]:
    return "".join(lines_of(f"/proc/{pid}/cmdline")).split("\0")[:5]


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for memory; 0 where it does not say."""
    for line in lines_of("/proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        if not controllers:
            files = [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            files = [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
        else:
            continue
        for file in files:
            for said in lines_of(file):
                if said.startswith("oom_kill "):
                    return int(said.split()[1])
    return 0


def explain_kill(pid: int, kills: int) -> str:
    """Say what is known of a SIGKILL that nobody here sent."""
    if kills > 0:
        return f"out of memory: the cgroup's oom_kill count rose by {kills}"
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while True:
            record = os.read(log, 8192)
            if f"Killed process {pid} ".encode() in record:
                return "out of memory: the kernel's log says that it killed the process"
    except OSError:  # no more
        return ""
    finally:
        os.close(log)


def look_at(pid: int, seconds: float) -> str:
    """Say where a rank's processes stand: Python's stack by py-spy where that is, else the kernel's view.

    Takes so many seconds at most.
    """
    alive = _all()
    found = [pid]
    for one in found:
        found += _children(one, alive)
    lines = []
    end = time.monotonic() + min(seconds, DUMP_SECONDS)
    for one in found[:8]:
        name, state, _ = alive.get(one, ("?", "gone", 0))
        waits = "".join(lines_of(f"/proc/{one}/wchan")).strip("0\n")
        lines.append(f"process {one} ({name}): state {state}" + (f", waits in {waits}" if waits else ""))
        if name.startswith("python"):
            lines += _stack(one, max(0.1, end - time.monotonic()))
    return "\n".join(lines)


def _stack(pid: int, seconds: float) -> list[str]:
    import shutil  # noqa: PLC0415 - for stalls alone
    import subprocess  # noqa: PLC0415

    beside = os.path.dirname(os.readlink(f"/proc/{pid}/exe")) if os.path.exists(f"/proc/{pid}/exe") else ""
    tool = shutil.which(
        "py-spy", path=os.pathsep.join((os.environ["PATH"], os.path.dirname(_first_words(pid)[0]), beside))
    )
    if tool is None:
        return ["  (py-spy is not installed on this host: pip install py-spy shows the Python stack here)"]
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            [tool, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"  (py-spy: {error})"]
    return [f"  {line}" for line in (done.stdout or done.stderr).splitlines()[:40]]


def lines_of(path: str) -> list[str]:
    """Return a file's lines, none where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []
