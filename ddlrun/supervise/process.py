"""The mpirun of a job: what it says, and how it is made to end."""

import os
from contextlib import suppress

from ddlrun.remote.mpirun_process import Process, TimeoutExpired
from ddlrun.remote.sessions import end_session

# Of what it says so much is kept, to learn from it why it ended.
MOST_SAID = 1 << 18


class MpirunProcess:
    """A running mpirun; `said` is what it printed last, `pipes` its output: descriptor -> 0 (stdout) or 1."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pipes = {
            pipe.fileno(): stream for stream, pipe in enumerate((process.stdout, process.stderr)) if pipe is not None
        }
        self._said = b""
        self.asked = False
        """Whether it was asked to end."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end: its children learn of that before it can be waited for."""
        with suppress(TimeoutExpired):
            self._process.wait(seconds)
        return not self.running

    @property
    def code(self) -> int:
        """Its exit code, or minus the signal that ended it; 0 while it runs."""
        return self._process.returncode or 0

    @property
    def said(self) -> str:
        """What it printed last."""
        return self._said.decode(errors="replace")

    def read(self, fd: int) -> bytes:
        """Return what it has printed into a pipe, none where there is nothing now."""
        chunk = read_now(fd)
        self._said = (self._said + chunk)[-MOST_SAID:]
        return chunk

    def ask_to_end(self) -> None:
        """Ask it to end, once: a second signal makes that of Open MPI 4.1 leave its ranks alone."""
        if not self.asked and self.running:
            self.asked = True
            self._process.terminate()

    def kill(self) -> None:
        """Kill all of its session on this host."""
        end_session(self._process.pid)

    def end(self, now: float, *, ask_at: float, kill_at: float) -> None:
        """Make it end where it has not: ask it from one time on, kill it from another."""
        if now > ask_at and self.running:
            self.ask_to_end()
            if now > kill_at:
                self.kill()


def read_now(fd: int) -> bytes:
    """Read what is there of a descriptor that does not block."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
