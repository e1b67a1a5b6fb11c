"""A process's record in /proc/PID/stat, and the detection of a process that stays stopped."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PF_EXITING: "Final" = 4
STOPPED = "T"
"""The state of a process that has received SIGSTOP; one that a debugger has stopped is in another."""


# A process is checked at this interval, and stays stopped if it was so each of some times in a row.
CHECK_SECONDS = 3.0
CHECKS = 4


class ProcessStat:
    """The fields of /proc/PID/stat that ddlrun uses (see proc_pid_stat(5))."""

    def __init__(self, text: bytes) -> None:
        r"""Parse the text of the file.

        >>> stat = ProcessStat(b"7 (a (b) c) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
        >>> stat.name, stat.state, stat.parent, stat.exiting, stat.start_ticks
        ('a (b) c', 'S', 1, True, 4711)
        """
        name, _, rest = text.partition(b"(")[2].rpartition(b")")
        fields = rest.decode().split()
        self.name = name.decode(errors="replace")
        self.state = fields[0]
        self.parent = int(fields[1])
        self.exiting = self.state in ("Z", "X") or bool(int(fields[6]) & PF_EXITING)
        self.start_ticks = int(fields[19])


def read_stat(pid: int) -> "ProcessStat | None":
    """Return a process's record, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return ProcessStat(file.read())
    except OSError:
        return None


class StopDetector:
    """The detection of a process that stays stopped although this one runs: the job as a whole is not suspended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next_check = 0.0
        self._times = 0

    def stays_stopped(self, now: float) -> bool:
        """Check the process if that is due; return True when it has been stopped each of the last times."""
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_SECONDS
        stat = read_stat(self._pid)
        self._times = self._times + 1 if stat is not None and stat.state == STOPPED else 0
        return self._times >= CHECKS
