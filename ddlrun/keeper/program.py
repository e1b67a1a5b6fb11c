"""The user's program: its process, the pipes that it writes to, and its end."""

from __future__ import annotations

import os
import time

from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import become
from ddlrun.keeper.framework_environment import in_use
from ddlrun.keeper.guard import LONGEST_REPORT, fork_program
from ddlrun.keeper.proc_files import STOPPED, read_stat
from ddlrun.keeper.processes import count_oom_kills, explain_kill, has_children, send_signal
from ddlrun.keeper.program_streams import ProgramStreams, open_streams
from ddlrun.keeper.settings import HOOK as CHOSEN
from ddlrun.keeper.signals import HANDLED, restore_defaults
from ddlrun.keeper.task import Task
from ddlrun.wire.loop import reap_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.settings import KeeperSettings
    from ddlrun.wire.loop import Loop

# The exit codes of a shell or a container's runtime whose program was ended by a signal.
SIGNAL_CODES = range(129, 160)
LONGEST_ORDER = 16
# The time in which the agent reports a call of MPI_Abort by a program that has ended since.
ORDER_SECONDS = 1.0
HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")


class Program(Task):
    """The user's program, running or ended. The descriptor leads to its guard, which reports its end."""

    def __init__(self, streams: ProgramStreams, settings: KeeperSettings, *, oom_kills: int, refusal: str = "") -> None:
        """Begin with a program that was not started, and counts as ended.

        Args:
            streams: Its standard streams.
            settings: The settings of the keeper.
            oom_kills: The value of `count_oom_kills` before the start.
            refusal: The reason why it was not started, if that is known.
        """
        self.pid = self.guard_pid = 0
        self.outputs, self.input, self.terminal = streams.outputs, streams.input, streams.terminal
        self.status: int | None = EXIT_PREFLIGHT << 8
        """The wait status, once the program has ended."""
        self.started_at = self.ended_at = time.monotonic()
        """The times of the start and of the end, as time.monotonic() has them."""
        self._oom_kills_before = oom_kills
        self._reason, self._ports = refusal, settings.ports
        self._max_rss_kib = 0
        self._cpu_seconds = 0.0
        self._abort_code = 0
        self._orders = AbortOrders(-1 if settings.orders is None else settings.orders, self.abort)
        # A container's runtime exits with 128 + the program's signal.
        self._in_container = settings.container is not None
        if settings.places is not None:
            from ddlrun.keeper.shipped import OwnPaths  # noqa: PLC0415 - for such jobs alone

            for output in self.outputs:
                output.own_paths = OwnPaths(settings.places.cache)

    def watch(self, guard: int, program: int, link: _socket.socket) -> None:
        """Take charge of a process and its guard, given the guard's socket."""
        self.guard_pid, self.pid, self._link, self.fd = guard, program, link, link.fileno()
        self.status = None

    def begin(self, loop: Loop, connection: LauncherConnection, on_taken: Callable[[], None]) -> None:
        """Let a loop pass output on; `on_taken` is called whenever the program has taken its input."""
        self._orders.join(loop)
        for output in self.outputs:
            output.begin(loop, connection)
        self.join(loop)
        if self.input is not None:
            self.input.begin(loop, on_taken)

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
    def awaits_orders(self) -> bool:
        """Whether the agent may still report that the program, which has failed, has called MPI_Abort."""
        return self._orders.fd >= 0 and self.status != 0 and time.monotonic() < self.ended_at + ORDER_SECONDS

    def abort(self, code: int, reason: str) -> None:
        """Kill the program; it counts as ended with an exit code, for a reason."""
        self._reason, self._abort_code = reason, code
        if self.status is None:
            send_signal(self.pid, signal.SIGKILL)
        else:
            self.status = code << 8

    def resume(self) -> None:
        """Resume the guard if it was stopped."""
        stat = read_stat(self.guard_pid)
        if stat is not None and stat.state == STOPPED:
            send_signal(self.guard_pid, signal.SIGCONT)

    def on_ready(self, _events: int) -> None:
        """Read the guard's report of the end, if it has come."""
        try:
            report = self._link.recv(LONGEST_REPORT)
        except BlockingIOError:
            return
        self.leave()
        if report:  # else the guard was killed
            status, cpu_seconds, max_rss_kib = report.split()
            self._max_rss_kib = max(self._max_rss_kib, int(max_rss_kib))
            self._end(int(status), float(cpu_seconds))

    def reap_children(self) -> bool:
        """Reap every child that has ended, adopted ones too; return True if the program has ended.

        The guard reports the end of the program. If it was killed, the program is a child that was adopted.
        """
        reaped = False
        for pid, status, usage in reap_children():
            reaped = True
            self._max_rss_kib = max(self._max_rss_kib, usage.ru_maxrss)
            if pid == self.pid:
                self._end(status, usage.ru_utime + usage.ru_stime)
        if reaped and self.status is None:
            self.on_ready(0)  # the guard may have reported just before its own end
            if self.status is None and not has_children():
                self._end(signal.SIGKILL, 0.0)  # it was killed before it could report the end
        return self.status is not None

    def _end(self, status: int, cpu_seconds: float) -> None:
        """Record the end of the program."""
        if self._in_container and os.WIFEXITED(status) and os.WEXITSTATUS(status) in SIGNAL_CODES:
            status = os.WEXITSTATUS(status) - SIGNAL_CODES.start + 1
        self.status = self._abort_code << 8 if self._abort_code else status
        self._cpu_seconds, self.ended_at = cpu_seconds, time.monotonic()

    def report_end(self, *, ordered: bool, reason: str) -> protocol.RankEnd:
        """Return the report of the program's end, and whether another process has a port that it was to have.

        Args:
            ordered: The program ended because the keeper had sent it SIGTERM.
            reason: The explanation, if there is one; the kernel's of a SIGKILL comes first.
        """
        self._orders.leave()
        oom_kills = count_oom_kills() - self._oom_kills_before
        reason = self._reason or reason
        if self.signal == signal.SIGKILL and not ordered:
            reason = explain_kill(self.pid, oom_kills, self._cpu_seconds) or reason
        tails = {output.kind: output.tail.decode(errors="replace") for output in self.outputs} if self.status else {}
        return protocol.RankEnd(
            exit_code=self.exit_code, signal=self.signal, seconds=round(time.monotonic() - self.started_at, 3),
            max_rss_kib=self._max_rss_kib, ordered=ordered, reason=reason,
            taken_port=next(filter(in_use, self._ports if self.exit_code else ()), 0),
            tail=tails.get(protocol.ERR, ""), output_tail=tails.get(protocol.OUT, ""),
        )  # fmt: skip


class AbortOrders(Task):
    """The pipe from which an exit code comes if the program calls MPI_Abort.

    Some MPI libraries go on after that, and end on their own.
    """

    def __init__(self, fd: int, on_abort: Callable[[int, str], None]) -> None:
        """Take over the pipe, and what takes the code and the reason."""
        self.fd, self._on_abort = fd, on_abort

    def on_ready(self, _events: int) -> None:
        """Read the code, after which none follows."""
        code = os.read(self.fd, LONGEST_ORDER)
        self.close()
        if code:
            self._on_abort(int(code), f"it called MPI_Abort with code {int(code)}")


def refuse(settings: KeeperSettings, reason: str = "") -> Program:
    """Return the record of a program that was not started, and counts as ended with an exit code."""
    return Program(ProgramStreams(), settings, oom_kills=count_oom_kills(), refusal=reason)


def start(settings: KeeperSettings, prctl: Callable[[int, int], object]) -> Program:
    """Start the program below a guard, in a process group of its own; it dies with its keeper. `prctl` is libc's."""
    oom_kills = count_oom_kills()
    # Where an agent's modules come from an archive, this process keeps it open.
    hook = HOOK.replace("/proc/self/", f"/proc/{os.getpid()}/")
    streams = open_streams(settings.request)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the child has the keeper's handlers at first
    try:
        guard, pid, link = fork_program(prctl, settings)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return refuse(settings, f"no process can be started: {error.strerror} (see ulimit -u)")
    if link is None:
        streams.attach()
        restore_defaults()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.environ.get(CHOSEN) != "none":
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (hook, os.environ.get("PYTHONPATH"))))
        if settings.container is not None and settings.link is not None:
            settings.container.pass_on(settings.link)
        become(settings.argv, settings.label)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    streams.close_ends()
    program = Program(streams, settings, oom_kills=oom_kills)
    program.watch(guard, pid, link)
    return program
