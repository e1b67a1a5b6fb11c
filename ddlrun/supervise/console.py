"""What people see of a job, and what is kept of it: ranks' output, mpirun's words and ours, a status line, the logs."""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Sequence

from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.supervise.output import OutputLog, OutputStream, RankOutput
from ddlrun.supervise.termination import EndReason

STATUS_SECONDS = 1.0
# What mpirun says of its own ssh, now and then, and of signals, without any harm.
HARMLESS = rb"(?m)^(?:\[[^\]\n]*\] plm:(?:ssh|rsh): Warning: setpgid\(|mpirun: Forwarding signal )[^\n]*\n"
# In the lines of a console that several write: mpirun and ddlrun, beside the ranks from 0 on.
MPIRUN, OURSELVES = -1, -2


class Console:
    """Our two streams and the logs of a job."""

    def __init__(self, watch: SupervisionOptions, files: RunDir) -> None:
        self._status = ""
        self._consoles = OutputStream(1, colour=watch.colour), OutputStream(2, colour=watch.colour)
        if os.path.sameopenfile(1, 2):  # what one leaves unfinished there, the other ends
            self._consoles[1].lines = self._consoles[0].lines
        self._logs = OutputLog(files.stdout, self.tell), OutputLog(files.stderr, self.tell)
        self.output = RankOutput(watch.style, self._consoles, self._logs, watch.ranks, self.tell, self._clear_status)
        self._mpirun_log = OutputLog(files.mpirun_log, self.tell)
        self._drawn = self._tick_at = 0.0
        self._ticking = False

    @property
    def waiting(self) -> bool:
        """Whether something waits for a slow terminal or pipe."""
        return any(console.waiting for console in self._consoles)

    def tell(self, text: str) -> None:
        """Say something of our own, in a line of its own."""
        self._clear_status()
        block = b"".join(f"ddlrun: {line}\n".encode() for line in text.splitlines())
        self._logs[1].write(self._logs[1].lines.join(OURSELVES, block, b""))
        self._consoles[1].write(self._consoles[1].lines.join(OURSELVES, block, b""))

    def mpirun_says(self, stream: int, chunk: bytes, *, shown: bool) -> None:
        """Keep what mpirun itself printed, and show it where it is no noise."""
        self._mpirun_log.write(chunk)
        if shown:
            self._clear_status()
            console = self._consoles[stream]
            console.write(console.lines.join(MPIRUN, re.sub(HARMLESS, b"", chunk), b""))

    def due(self, now: float, *, reading: bool) -> float:
        """Show parts of lines whose time has come; return when to come again, at the latest."""
        waiting = self.waiting
        if not reading or waiting:
            self.output.hold()
        elif now >= self._tick_at:
            due = self.output.tick()
            self._tick_at = now + (0.1 if due is None else max(0.1, due))
            self._ticking = due is not None
        again = self._tick_at if self._ticking else float("inf")
        return min(again, now + 0.01) if waiting else again

    def flush(self) -> None:
        """Write what the other side takes now."""
        for console in self._consoles:
            console.flush()

    def closed(self) -> EndReason | None:
        """Return why the job has to end where our own output cannot be written any more."""
        closed = [console for console in self._consoles if console.closed]
        if not closed:
            return None
        name, why = ("standard output", "standard error")[closed[0].fd - 1], closed[0].error
        unread = EndReason(128 + signal.SIGPIPE, f"nobody reads {name} any more", signal.SIGPIPE, wanted=True)
        return unread if why is None else EndReason(1, f"{name}: {why}", wanted=True)

    def draw_status(self, now: float, status: Callable[[], str]) -> None:
        """Draw the status line anew, once a second, where no line is unfinished."""
        if now <= self._drawn + STATUS_SECONDS:
            return
        self._drawn = now
        if self.waiting or any(console.lines.inside_a_line for console in self._consoles):
            return
        try:
            columns = os.get_terminal_size(2).columns
        except OSError:
            columns = 80
        self._status = status()[: (columns or 80) - 1]
        self._consoles[1].write(f"\r\x1b[K{self._status}".encode())

    def finish(self, seconds: float, stop: Callable[[], Sequence[int]], *, failed: bool) -> None:
        """Wait so long for slow readers of what is left, or until `stop` returns signals; close all."""
        self._clear_status()
        if self._consoles[1].lines.inside_a_line and failed:
            self._consoles[1].write(b"\n")  # a report follows
        until = time.monotonic() + seconds
        while self.waiting and time.monotonic() < until and not stop():
            select.select([], [console.fd for console in self._consoles if console.waiting], [], 0.1)
            self.flush()
        dropped = sum(console.dropped for console in self._consoles)
        if dropped:
            self.tell(f"{dropped} bytes of output were not shown, as nobody read them; the logs have them")
        for log in (*self._logs, self._mpirun_log):
            log.close()
        for console in self._consoles:
            console.close()

    def _clear_status(self) -> None:
        if self._status:
            self._consoles[1].write(b"\r\x1b[K")
            self._status = ""


def status_line(seconds: float, alive: int, ranks: int, silent: float, stalled: Sequence[int]) -> str:
    """Return the job's state in a line.

    >>> status_line(3725.5, 7, 8, 61.2, [3])
    'ddlrun 1:02:05 | 7 of 8 ranks | last output 61 s ago | silent: 3'
    """
    spent = int(seconds)
    line = f"ddlrun {spent // 3600}:{spent // 60 % 60:02}:{spent % 60:02} | {alive} of {ranks} ranks"
    line += f" | last output {silent:.0f} s ago"
    return line + (f" | silent: {','.join(map(str, stalled[:8]))}" if stalled else "")
