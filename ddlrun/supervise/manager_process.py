"""The process manager of a job: its output and its end."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from ddlrun.keeper.proc_files import STOPPED, StopDetector, read_stat
from ddlrun.managers.end import EndCode, EndFinding, ManagerEnd, ManagerOutput
from ddlrun.plan.supervision import SupervisedJob
from ddlrun.remote.manager_session import Process, TimeoutExpired, end_session
from ddlrun.supervise.relays import Relays
from ddlrun.wire.loop import ENDED, READ, Loop

# The last bytes of its output are stored: they may hold the reason for its end.
MOST_STORED = 1 << 18
CHUNK = 1 << 16
# More than the characters by which it is known that it refuses to start processes; two chunks may have them.
LONGEST_REFUSAL = 100


class ManagerProcess:
    """A running process manager, or one that has ended."""

    def __init__(
        self,
        process: Process,
        job: SupervisedJob,
        loop: Loop,
        on_output: Callable[[int, bytes, bool], None],
        relays: Relays | None = None,
    ) -> None:
        """Take charge of a process, and of daemons whose output the relays get.

        `on_output` gets what it writes to standard output (0) or standard error (1), and whether that is for the user:
        the report of the job repeats the texts of messages.
        """
        self._process, self._loop, self._on_output = process, loop, on_output
        self._stop = StopDetector(process.pid)
        self._job, self.name = job, job.manager.name
        self._relays = relays
        if relays is not None:
            relays.serve(loop, self._take)
        self._pipes = {
            pipe.fileno(): stream for stream, pipe in enumerate((process.stdout, process.stderr)) if pipe is not None
        }
        """Descriptor -> 0 (standard output) or 1 (standard error)."""
        for fd in self._pipes:
            loop.watch(fd, READ, lambda events, fd=fd: self._on_pipe(fd, events))  # type: ignore[misc]
        self._output = b""
        self._reports: list[tuple[bytes, bytes]] = []
        self._ended_by_ddlrun = False
        """Whether SIGTERM or SIGKILL was sent to it."""
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

    def read_rest(self) -> None:
        """Read what it has written before its end."""
        for fd in self._pipes:
            while self._read(fd):
                pass

    def _on_pipe(self, fd: int, events: int) -> None:
        if not self._read(fd) and events & ENDED:
            self._loop.forget(fd)
            del self._pipes[fd]

    def _read(self, fd: int) -> bool:
        """Store and pass on what a pipe holds now; return False if that is nothing."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._take(self._pipes[fd], data)
        return bool(data)

    def _take(self, stream: int, chunk: bytes, *, is_text: bool = True) -> None:
        self._output = (self._output + chunk)[-MOST_STORED:]
        if not self.refused_spawn:
            recent = self._output[-len(chunk) - LONGEST_REFUSAL :].decode(errors="replace")
            findings = self._find(ManagerOutput(0, recent))
            self.refused_spawn = any(finding.code is EndCode.REFUSED_SPAWN for finding in findings)
        self._on_output(stream, chunk, is_text)

    def add_report(self, kind: bytes, text: bytes) -> None:
        """Take a message of agents about what ends the job."""
        self._reports.append((kind, text))
        for finding in self._find(ManagerOutput(0, reports=self._reports[-1:])):
            self._take(0, f"ddlrun: {finding.text}\n".encode(), is_text=False)

    def end_report(self) -> ManagerEnd:
        """Return its exit code, its findings, and whether ddlrun has ended it."""
        output = ManagerOutput(
            exit_code=self.exit_code,
            text=self.output,
            reports=self._reports,
            host_names=self._job.host_names,
        )
        losses = [] if self._relays is None else self._relays.losses
        return ManagerEnd(self.exit_code, [*losses, *self._find(output)], self._ended_by_ddlrun, self.name)

    def _find(self, output: ManagerOutput) -> list[EndFinding]:
        """Return the findings in an output, those about a rank with its host."""
        return [self._add_host(finding) for finding in self._job.manager.read_end(output)]

    def _add_host(self, finding: EndFinding) -> EndFinding:
        of_rank = 0 <= finding.rank < self._job.ranks and not finding.host
        return finding._replace(host=self._job.host_of(finding.rank)) if of_rank else finding

    def terminate(self) -> None:
        """Send SIGTERM, once: after a second one, a process manager may leave its ranks behind."""
        if not self._ended_by_ddlrun and self.running:
            self._ended_by_ddlrun = True
            self._process.terminate()

    def stays_stopped(self, now: float) -> bool:
        """Return True if it has been stopped for a while; call this at least every few seconds."""
        return self._stop.stays_stopped(now)

    def resume(self) -> bool:
        """Resume it if it was stopped; return True if so."""
        stat = read_stat(self._process.pid)
        stopped = stat is not None and stat.state == STOPPED
        if stopped:
            self._process.send_signal(signal.SIGCONT)
        return stopped

    def kill(self) -> None:
        """Kill its whole session on this host."""
        self._ended_by_ddlrun = self._ended_by_ddlrun or self.running
        end_session(self._process.pid)

    def end(self, now: float, *, term_at: float, kill_at: float) -> None:
        """Send what is due unless it has ended: SIGTERM from one time on, SIGKILL from another."""
        if now > term_at and self.running:
            self.terminate()
            if now > kill_at:
                self.kill()
