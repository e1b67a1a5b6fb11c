"""The mpirun of a job: its output and its end."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from ddlrun.managers.openmpi import spawn_refused
from ddlrun.managers.openmpi.ssh_clients import SshClients
from ddlrun.rank.process_stat import STOPPED, StopDetector, read_stat
from ddlrun.remote.manager_start import Process, TimeoutExpired
from ddlrun.remote.sessions import end_session
from ddlrun.supervise.root_cause import ManagerEnd

# The last bytes of its output are stored: they may hold the reason for its end.
MOST_STORED = 1 << 18
CHUNK = 1 << 16
# More than the characters by which it is known that mpirun refuses to start processes; two chunks may have them.
LONGEST_REFUSAL = 100


class ManagerProcess:
    """A running mpirun, or one that has ended."""

    def __init__(self, process: Process, name: str, host_names: Sequence[str], ssh_clients: SshClients) -> None:
        """Take charge of a process.

        Args:
            process: The process.
            name: The name of the process manager in messages.
            host_names: The hosts of the job.
            ssh_clients: The ssh clients that it starts.
        """
        self._process = process
        self._stop = StopDetector(process.pid)
        self.name, self._host_names = name, host_names
        self.ssh_clients = ssh_clients
        self.pipes = {
            pipe.fileno(): stream for stream, pipe in enumerate((process.stdout, process.stderr)) if pipe is not None
        }
        """Descriptor -> 0 (standard output) or 1 (standard error)."""
        self._output = b""
        self.terminated = False
        """Whether SIGTERM was sent to it."""
        self._killed = False
        self.refused_spawn = False
        """Whether it has refused to start more processes for the job."""
        self._ended_at: float | None = None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """Its exit code, or minus the signal that ended it; 0 while it runs."""
        return self._process.returncode or 0

    @property
    def output(self) -> str:
        """The last of its output."""
        return self._output.decode(errors="replace")

    def ends_within(self, seconds: float) -> bool:
        """Wait up to some seconds for its end: its children notice the end before it can be waited for."""
        with suppress(TimeoutExpired):
            self._process.wait(seconds)
        return not self.running

    def seconds_since_end(self, now: float) -> float:
        """Return the seconds since this was first called after its end."""
        if self._ended_at is None:
            self._ended_at = now
        return now - self._ended_at

    def read(self, fd: int) -> bytes:
        """Return the bytes that a pipe holds now, and store them."""
        chunk = read_now(fd)
        self._output = (self._output + chunk)[-MOST_STORED:]
        if chunk and not self.refused_spawn:
            recent = self._output[-len(chunk) - LONGEST_REFUSAL :]
            self.refused_spawn = spawn_refused(recent.decode(errors="replace"))
        return chunk

    def end_report(self) -> ManagerEnd:
        """Return its exit code, the last of its output, and whether ddlrun has ended it."""
        ended_by_ddlrun = self.terminated or self._killed
        return ManagerEnd(
            exit_code=self.exit_code,
            output=self.output,
            ended_by_ddlrun=ended_by_ddlrun,
            name=self.name,
            host_names=self._host_names,
            ended_ssh_client=self.ssh_clients.first_ended,
        )

    def watch_ssh_clients(self) -> None:
        """Begin to watch the ssh clients that it has started."""
        self.ssh_clients.watch(self._process.pid)

    def terminate(self) -> None:
        """Send SIGTERM, once: after a second one, Open MPI 4.1 leaves its ranks alone."""
        if not self.terminated and self.running:
            self.terminated = True
            self._process.terminate()

    def stays_stopped(self, now: float) -> bool:
        """Return True if it has been stopped for a while; call this at least every few seconds."""
        return self._stop.stays_stopped(now)

    def resume(self) -> bool:
        """Continue it if it was stopped; return True if so."""
        stat = read_stat(self._process.pid)
        stopped = stat is not None and stat.state == STOPPED
        if stopped:
            self._process.send_signal(signal.SIGCONT)
        return stopped

    def kill(self) -> None:
        """Kill its whole session on this host."""
        self._killed = True
        end_session(self._process.pid)

    def end(self, now: float, *, term_at: float, kill_at: float) -> None:
        """Send what is due unless it has ended: SIGTERM from one time on, SIGKILL from another."""
        if now > term_at and self.running:
            self.terminate()
            if now > kill_at:
                self.kill()


def read_now(fd: int) -> bytes:
    """Return the bytes that a non-blocking descriptor holds now, none if there are none."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return b""
