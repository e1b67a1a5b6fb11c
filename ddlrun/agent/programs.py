"""The programs that run on a host for ddlrun, beside the ranks: sh with a script, and forks of the agent with tasks."""

from __future__ import annotations

import os
import time

from ddlrun.agent import protocol
from ddlrun.agent.local_ranks import fork
from ddlrun.agent.protocol import ProgramEnd, ProgramOutput
from ddlrun.errors import EXIT_SIGNAL
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.processes import descendants_of, list_processes, send_signal
from ddlrun.keeper.signals import IGNORED
from ddlrun.wire.loop import NEVER, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddlrun.agent.protocol import ProgramRequest
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 16
# The time from SIGTERM to SIGKILL.
GRACE_SECONDS = 3.0
# The exit code of a program that could not be started; a shell without Python has another.
EXIT_NOT_STARTED = 126


class HostProgram:
    """A program that runs, or whose output others hold open."""

    def __init__(self, request: ProgramRequest, pid: int, pipes: dict[int, int]) -> None:
        """Take its request, its process, and its pipes with the numbers of their streams."""
        self.number, self.linger, self.pid, self.pipes = request.number, request.linger, pid, pipes
        self.end_at = time.monotonic() + request.seconds if request.seconds else NEVER
        self.status: int | None = None
        self.stopped = self.late = False
        """Whether it has received SIGTERM; and whether because its time was over."""
        self._others: list[int] = []
        """Its descendants outside its process group, as of the first signal."""

    @property
    def code(self) -> int | None:
        """The exit code as a shell has it; None if its time was over."""
        if self.late or self.status is None:
            return None
        killed = os.WIFSIGNALED(self.status)
        return EXIT_SIGNAL + os.WTERMSIG(self.status) if killed else os.WEXITSTATUS(self.status)

    def signal(self, number: int) -> None:
        """Send a signal to its process group, which exists while it is not reaped, and to its other descendants."""
        if self.status is None:
            self._others = self._others or _descendants_elsewhere(self.pid)
            os.killpg(self.pid, number)
        for pid in self._others:
            send_signal(pid, number)


class HostPrograms:
    """The programs of a host. Each has a process group of its own."""

    def __init__(
        self, loop: Loop, report: Callable[[bytes, bytes], None], host: str, environ: Mapping[str, str],
        needed: Sequence[int],
    ) -> None:  # fmt: skip
        """Begin without any.

        Args:
            loop: The loop.
            report: Takes their output and their ends to ddlrun.
            host: The name of this host.
            environ: Their environment.
            needed: The descriptors from which tasks get their modules.
        """
        self._loop, self._report, self._host, self._environ = loop, report, host, environ
        self._needed = needed
        self._programs: list[HostProgram] = []
        self._reading = True
        loop.watch_deadline(self._next_end, self._end_due)

    @property
    def running(self) -> bool:
        """Whether one has not ended."""
        return bool(self._programs)

    @property
    def linger(self) -> float:
        """The longest time that one may go on after the end of the link."""
        return max((program.linger for program in self._programs), default=0.0)

    def start(self, request: ProgramRequest) -> None:
        """Start a shell with a script as its standard input, or a fork of this process with a task."""
        try:
            pid, pipes = self._start(request)
        except OSError as error:
            self._report_output(request.number, 2, f"no process can be started: {error.strerror}\n".encode())
            self._report_end(request.number, EXIT_NOT_STARTED)
            return
        program = HostProgram(request, pid, pipes)
        self._programs.append(program)
        self._watch(program)

    def _start(self, request: ProgramRequest) -> tuple[int, dict[int, int]]:
        """Start a program; return its process id, and the pipes of its output with the numbers of their streams."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        try:
            pid = (self._fork_task if request.module else self._start_shell)(request, out_end, err_end)
        except OSError:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.close(out_end)
            os.close(err_end)
        return pid, {out: 1, err: 2}

    def _start_shell(self, request: ProgramRequest, out: int, err: int) -> int:
        with open(os.memfd_create("script"), "w+b") as stdin:
            stdin.write(request.script)
            stdin.seek(0)
            files = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate((stdin.fileno(), out, err))]
            return os.posix_spawnp("sh", ["sh"], self._environ, file_actions=files, setpgroup=0, setsigdef=IGNORED)

    def _fork_task(self, request: ProgramRequest, out: int, err: int) -> int:
        pid = fork(lambda: self._do_task(request, out, err), 0, 2, out, err, *self._needed)
        try:
            os.setpgid(pid, pid)  # as it does itself: a signal may come before that
        except OSError:  # it has ended
            return pid
        return pid

    def _do_task(self, request: ProgramRequest, out: int, err: int) -> None:
        """Do a task in this process, a fork, and exit; what the task raises is shown."""
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.environ.clear()
        os.environ.update(self._environ)
        from ddlrun.agent.tasks import print_result  # noqa: PLC0415 - not for every agent

        print_result(request.module, request.script.decode())
        os._exit(0)

    def stop(self, number: int) -> None:
        """Stop a program."""
        for program in self._programs:
            if program.number == number and not program.stopped:
                self._stop(program)

    def leave(self) -> None:
        """Stop all programs as the link has ended, some of them later."""
        for program in self._programs:
            program.end_at = min(program.end_at, time.monotonic() + program.linger)

    def reap(self, pid: int, status: int) -> bool:
        """Take the end of a process; return False for one that is not a program."""
        program = next((program for program in self._programs if program.pid == pid), None)
        if program is not None:
            program.status = status
            self._settle(program)
        return program is not None

    def pause(self, *, reading: bool) -> None:
        """Read what programs write, or leave it to wait."""
        if reading != self._reading:
            self._reading = reading
            for program in self._programs:
                self._watch(program)

    def _watch(self, program: HostProgram) -> None:
        for fd in program.pipes:
            if self._reading:
                self._loop.watch(fd, READ, lambda _events, fd=fd: self._read(program, fd))  # type: ignore[misc]
            else:
                self._loop.forget(fd)

    def _read(self, program: HostProgram, fd: int) -> None:
        data = os.read(fd, CHUNK)
        if data:
            self._report_output(program.number, program.pipes[fd], data)
        else:
            self._close(program, fd)
            self._settle(program)

    def _close(self, program: HostProgram, *fds: int) -> None:
        for fd in fds:
            self._loop.forget(fd)
            os.close(fd)
            del program.pipes[fd]

    def _settle(self, program: HostProgram) -> None:
        """Report the end of a program once its process has ended, and all output was read."""
        if program.status is not None and not program.pipes:
            self._programs.remove(program)
            self._report_end(program.number, program.code)

    def _next_end(self) -> float:
        return min((program.end_at for program in self._programs), default=NEVER)

    def _end_due(self, now: float) -> None:
        for program in [program for program in self._programs if program.end_at <= now]:
            program.late = program.late or not program.stopped
            self._stop(program)

    def _stop(self, program: HostProgram) -> None:
        """Send SIGTERM, and SIGKILL the next time; then its output may be held open by others."""
        program.signal(signal.SIGKILL if program.stopped else signal.SIGTERM)
        if program.stopped:
            self._close(program, *program.pipes)
            self._settle(program)
        program.stopped = True
        program.end_at = time.monotonic() + GRACE_SECONDS

    def _report_output(self, number: int, stream: int, data: bytes) -> None:
        output = ProgramOutput(host=self._host, number=number, stream=stream, data=data)
        self._report(protocol.OUTPUT, output.pack())

    def _report_end(self, number: int, code: int | None) -> None:
        self._report(protocol.ENDED, ProgramEnd(host=self._host, number=number, code=code).pack())


def _descendants_elsewhere(leader: int) -> list[int]:
    """Return the descendants of the leader of a process group that have another, such as a daemon of Open MPI 5."""
    descendants = descendants_of(leader, list_processes())
    return [pid for pid in descendants if _group(pid) not in (0, leader)]


def _group(pid: int) -> int:
    """Return the process group of a process, 0 if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
