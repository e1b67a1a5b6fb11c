"""Files of /proc and /sys, read with few system calls; the detection of a process that stays stopped."""

from __future__ import annotations

import os

CHUNK = 1 << 16
CGROUPS = "/sys/fs/cgroup"
TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
PF_EXITING = 4
STOPPED = "T"
"""The state of a process that has received SIGSTOP; one that a debugger has stopped is in another."""
# A process is checked at this interval, and stays stopped if it was so each of some times in a row.
CHECK_SECONDS = 3.0
CHECKS = 4


def read_file(path: str) -> bytes:
    """Return the content of a small file, empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_text(path: str) -> str:
    """Return the text of a file of any size, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def find_line(path: str, beginning: str) -> str:
    """Return the rest of the first line of a file that begins with a text; empty if there is none."""
    lines = read_text(path).split("\n")
    return next((line[len(beginning) :].strip() for line in lines if line.startswith(beginning)), "")


def list_folder(path: str) -> list[str]:
    """Return the names in a folder, none if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_link(path: str) -> str:
    """Return the target of a link, empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def parse_counters(text: bytes) -> dict[bytes, int]:
    r"""Parse lines of a name and a number, as cpu.stat and vmstat have them.

    >>> parse_counters(b"nr_periods 7\nnr_throttled 2\n")
    {b'nr_periods': 7, b'nr_throttled': 2}
    """
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2])))  # noqa: B905 - as fast as possible


def list_cgroups(process: int | str, controller: str) -> list[str]:
    """Return the folders of a process's cgroup with a controller, and of those above it, the uppermost first."""
    for line in read_text(f"/proc/{process}/cgroup").splitlines():  # that of version 2 names none, and is the last
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            folders = [f"{CGROUPS}/{controller}" if controllers else CGROUPS]
            for name in filter(None, path.split("/")):
                folders.append(f"{folders[-1]}/{name}")
            return folders
    return []


class ProcessStat:
    """The fields of /proc/PID/stat that ddlrun uses (see proc_pid_stat(5))."""

    def __init__(self, text: bytes) -> None:
        r"""Parse the text of the file.

        >>> stat = ProcessStat(b"7 (a (b) c) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
        >>> stat.name, stat.state, stat.parent, stat.exiting, stat.start_ticks
        ('a (b) c', 'S', 1, True, 4711)
        """
        name, _, rest = text.partition(b"(")[2].rpartition(b")")
        fields = self._fields = rest.split()
        self.name = name.decode(errors="replace")
        self.state = fields[0].decode()
        self.parent, self.session = int(fields[1]), int(fields[3])
        self.exiting = self.state in ("Z", "X") or bool(int(fields[6]) & PF_EXITING)

    @property
    def start_ticks(self) -> int:
        """The time of its start, in ticks since that of the kernel."""
        return int(self._fields[19])

    @property
    def usage(self) -> tuple[int, int, int]:
        """The ms of CPU time in user mode and in the kernel, and the number of major page faults."""
        return int(self._fields[11]) * TICK_MS, int(self._fields[12]) * TICK_MS, int(self._fields[9])

    @property
    def ended_ms(self) -> int:
        """The ms of CPU time of its children that have ended."""
        return (int(self._fields[13]) + int(self._fields[14])) * TICK_MS


def read_stat(pid: int) -> ProcessStat | None:
    """Return a process's record, or None if there is no such process."""
    text = read_file(f"/proc/{pid}/stat")
    return ProcessStat(text) if text else None


class StopDetector:
    """The detection of a process that stays stopped although this one runs: the job as a whole is not suspended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.next_check = 0.0
        """The time (time.monotonic) from which `stays_stopped` checks the process once more."""
        self._times = 0

    def stays_stopped(self, now: float) -> bool:
        """Check the process if that is due; return True when it has been stopped each of the last times."""
        if now < self.next_check:
            return False
        self.next_check = now + CHECK_SECONDS
        stat = read_stat(self._pid)
        self._times = self._times + 1 if stat is not None and stat.state == STOPPED else 0
        return self._times >= CHECKS
