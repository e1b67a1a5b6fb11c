"""The user's program: its process, the pipes that it writes to, and its end."""

from __future__ import annotations

import os
import time

from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import become
from ddlrun.keeper.guard import fork_program
from ddlrun.keeper.processes import count_oom_kills, explain_kill, send_signal
from ddlrun.keeper.program_streams import ProgramStreams, open_streams
from ddlrun.keeper.signals import HANDLED, restore_defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.guard import Guard
    from ddlrun.keeper.program_input import ProgramInput
    from ddlrun.keeper.settings import KeeperSettings
    from ddlrun.keeper.shipped import OwnPaths

CHUNK = 1 << 16
TAIL = 16 << 10
# The exit codes of a shell or a container's runtime whose program was ended by a signal.
SIGNAL_CODES = range(129, 160)
HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")


class Program:
    """The user's program, running or ended."""

    def __init__(
        self,
        guard: Guard | None,
        streams: ProgramStreams,
        *,
        oom_kills: int,
        status: int | None = None,
        in_container: bool = False,
    ) -> None:
        """Take charge of a process.

        Args:
            guard: The parent of the process; None if the program was refused.
            streams: Its standard streams.
            oom_kills: The value of `count_oom_kills` before the start.
            status: The wait status, if the program counts as ended.
            in_container: Whether the process is a container's runtime, which exits with 128 + the program's signal.
        """
        self.guard = guard
        self.pid = 0 if guard is None else guard.program
        self.pipes = streams.pipes
        """Descriptor from which output is read -> the kind of message for the data."""
        self.input: ProgramInput | None = streams.input
        self.status = status
        self.started_at = self._ended_at = time.monotonic()
        """The time of the start, as time.monotonic() has it."""
        self.terminal = streams.terminal
        """Whether it has a pseudo terminal."""
        self._oom_kills_before = oom_kills
        self.refusal = ""
        """The reason why it was not started, if that is known."""
        self._tails = {protocol.OUT: b"", protocol.ERR: b""}
        self._max_rss_kib = 0
        self._cpu_seconds = 0.0
        self._abort_code = 0
        self._own_paths: OwnPaths | None = None
        self._in_container = in_container

    def show_own_paths(self, cache: str) -> None:
        """Replace the paths of shipped files, which are in the cache, in the output by those that the user knows."""
        from ddlrun.keeper.shipped import OwnPaths  # noqa: PLC0415 - for such jobs alone

        self._own_paths = OwnPaths(cache)

    @property
    def signal(self) -> int:
        """The signal that ended the program, 0 if none did."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal; 0 while the program runs."""
        if self.status is None:
            return 0
        return 128 + self.signal if self.signal else os.WEXITSTATUS(self.status)

    @property
    def ended_at(self) -> float:
        """The time of the end, as time.monotonic() has it."""
        return self._ended_at

    def read(self, fd: int) -> bytes:
        """Return the output that a pipe holds, empty if there is none; close the pipe at its end."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        ended, kind = not data, self.pipes[fd]
        if self._own_paths is not None:
            data = self._own_paths.restore(fd, data)
        if ended:
            self.close_pipe(fd)
        elif not data:  # all of it was held back
            return self.read(fd)
        self._tails[kind] = (data if len(data) >= TAIL else self._tails[kind] + data)[-TAIL:]
        return data

    def abort(self, code: int) -> None:
        """Kill the program unless it has ended; it counts as ended with an exit code."""
        self._abort_code = code
        if self.status is None:
            send_signal(self.pid, signal.SIGKILL)
        else:
            self.status = code << 8

    def close_pipe(self, fd: int) -> None:
        """Close a pipe unless that has been done."""
        if self.pipes.pop(fd, None) is not None:
            os.close(fd)

    def reap_children(self) -> bool:
        """Reap every child that has ended, adopted ones too; return True if the program has ended since the last call.

        The guard reports the end of the program. If it was killed, the program is a child that was adopted.
        """
        before = self.status
        self._read_report()
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._read_report()
                self._end(signal.SIGKILL, 0.0)  # unless that is known: the guard was killed before it could report it
                break
            if pid == 0:
                break
            self._max_rss_kib = max(self._max_rss_kib, usage.ru_maxrss)
            if pid == self.pid:
                self._end(status, usage.ru_utime + usage.ru_stime)
        return before is None and self.status is not None

    def _read_report(self) -> None:
        report = None if self.guard is None else self.guard.read_end()
        if report is not None:
            status, cpu_seconds, max_rss_kib = report
            self._max_rss_kib = max(self._max_rss_kib, max_rss_kib)
            self._end(status, cpu_seconds)

    def _end(self, status: int, cpu_seconds: float) -> None:
        """Record the end of the program, unless that has been done."""
        if self.status is None:
            if self._in_container and os.WIFEXITED(status) and os.WEXITSTATUS(status) in SIGNAL_CODES:
                status = os.WEXITSTATUS(status) - SIGNAL_CODES.start + 1
            self.status = self._abort_code << 8 if self._abort_code else status
            self._cpu_seconds = cpu_seconds
            self._ended_at = time.monotonic()

    def report_end(self, *, ordered: bool, reason: str) -> protocol.RankEnd:
        """Return the report of the program's end.

        Args:
            ordered: The program ended because the keeper had sent it SIGTERM.
            reason: The explanation, if there is one; the kernel's of a SIGKILL comes first.
        """
        oom_kills = count_oom_kills() - self._oom_kills_before
        reason = self.refusal or reason
        if self.signal == signal.SIGKILL and not ordered:
            reason = explain_kill(self.pid, oom_kills, self._cpu_seconds) or reason
        output, errors = (self._tails[kind].decode(errors="replace") if self.status else "" for kind in protocol.OUTPUT)
        return protocol.RankEnd(
            exit_code=self.exit_code, signal=self.signal, seconds=round(time.monotonic() - self.started_at, 3),
            max_rss_kib=self._max_rss_kib, ordered=ordered, reason=reason, tail=errors, output_tail=output,
        )  # fmt: skip


def refuse(code: int, reason: str = "") -> Program:
    """Return the record of a program that was not started and counts as ended with an exit code."""
    refused = Program(None, ProgramStreams({}, (None, 1, 2)), oom_kills=count_oom_kills(), status=code << 8)
    refused.refusal = reason
    return refused


def start(settings: KeeperSettings, prctl: Callable[[int, int], object]) -> Program:
    """Start the program below a guard, in a process group of its own; it dies with its keeper. `prctl` is libc's."""
    oom_kills = count_oom_kills()
    # Where an agent's modules come from an archive, this process keeps it open.
    hook = HOOK.replace("/proc/self/", f"/proc/{os.getpid()}/")
    streams = open_streams(settings.request)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the child has the keeper's handlers at first
    try:
        guard = fork_program(prctl, settings)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return refuse(EXIT_PREFLIGHT, f"no process can be started: {error.strerror} (see ulimit -u)")
    if guard is None:
        streams.attach()
        restore_defaults()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (hook, os.environ.get("PYTHONPATH"))))
        if settings.container is not None and settings.link is not None:
            settings.container.pass_on(settings.link)
        become(settings.argv, settings.label)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    streams.close_ends()
    return Program(guard, streams, oom_kills=oom_kills, in_container=settings.container is not None)
