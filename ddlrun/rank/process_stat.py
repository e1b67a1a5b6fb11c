"""A process's record in /proc/PID/stat."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PF_EXITING: "Final" = 4
STOPPED = "T"
"""The state of a process that has received SIGSTOP; one that a debugger has stopped is in another."""


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
