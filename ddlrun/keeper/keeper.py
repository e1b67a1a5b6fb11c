"""The keeper of a rank: it stays with the user's program, from its start to the report of its end.

The process manager starts the keeper. The program is a child of the keeper's guard, a subreaper (prctl(2)): whatever
the program leaves behind becomes a child of the guard, and of the keeper if the guard is killed (guard.py). A TCP
connection leads to ddlrun: output and reports go there, orders come from there. When ddlrun, the process manager, its
daemon or the network fails, the keeper notices and ends the program.

The keeper is a state machine: see keeper_state.py.
"""

from __future__ import annotations

import os
import select
import time

from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.connection import LauncherConnection, LauncherSocket
from ddlrun.keeper.daemon import end_daemon, find_session_folder, is_daemon, remove_session_folder, watch_daemon
from ddlrun.keeper.escalation import Escalation
from ddlrun.keeper.framework_environment import in_use
from ddlrun.keeper.keeper_state import BEFORE_THE_END, State
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.keeper.process_stat import StopDetector
from ddlrun.keeper.processes import (
    find_signal_targets,
    has_children,
    is_exiting,
    kill_run,
    list_descendants,
    send_signal,
)
from ddlrun.keeper.signals import WARNINGS, ReceivedWarnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.container import Container
    from ddlrun.keeper.program import Program
    from ddlrun.keeper.program_input import ProgramInput
    from ddlrun.keeper.settings import KeeperSettings
    from ddlrun.keeper.signals import SignalQueue
    from ddlrun.keeper.stacks.snapshot_process import SnapshotProcess
    from ddlrun.keeper.usage.host import HostUsageReader
    from ddlrun.keeper.usage.rank import UsageReporter

# While this much output waits to be sent, the program is not read.
MOST_UNSENT = 1 << 18
UNKILLABLE_SECONDS = 10.0
LONGEST_WAIT = 5.0
# The interval at which an ended program's children and pipes are checked.
DRAIN_INTERVAL = 0.05
# The time in which the agent reports a call of MPI_Abort by a program that has ended since.
ORDER_SECONDS = 1.0
SNAPSHOT_SECONDS = 15.0
LONGEST_ORDER = 16
# The errors where a file of /proc is not as proc(5) describes it.
UNREADABLE = (OSError, ValueError, IndexError, KeyError)


class Keeper:
    """A program, the connection to ddlrun and the state that both are in."""

    def __init__(
        self, connected: LauncherSocket, program: Program, signals: SignalQueue, settings: KeeperSettings
    ) -> None:
        """Take charge of a program, or of the record of one that was refused.

        Args:
            connected: The socket that leads to ddlrun.
            program: The program.
            signals: The queue of signals, which existed before the program was started.
            settings: The other settings.
        """
        self._settings = settings
        self._connection = LauncherConnection(connected, settings.heartbeat, self._on_loss)
        self._program = program
        self._signals = signals
        self._escalation = Escalation()
        self._watches_daemon = settings.local_rank == 0 and is_daemon(settings.parent)
        self._daemon_stop = StopDetector(settings.parent)
        self._state = State.RUNNING if program.status is None else State.DRAINING
        self._ordered = False
        self._may_leave = False
        self._alone = False
        self._handed_over = self._over = False
        self._warnings = ReceivedWarnings()
        self._reason = ""
        self._orders = settings.orders
        self._usage: UsageReporter | None = None
        self._snapshot: SnapshotProcess | None = None

    def send(self, kind: bytes, text: str) -> None:
        """Queue a message to ddlrun."""
        self._connection.send(kind, text.encode(errors="replace"))

    def run(self) -> None:
        """Stay with the program to its end, and exit with its exit code."""
        if os.getppid() != self._settings.parent:  # it ended before the kernel was told to report that
            self._on_signal(signal.SIGTERM)
        if self._watches_daemon and find_session_folder():
            self.send(protocol.SESSION_FOLDER, find_session_folder())
        while self._advance() != State.GONE:
            self._wait()
        if self._settings.local_rank == 0:
            self._leave_host()
        if self._connection.timed_out:
            end_daemon(self._settings.parent)  # which may kill this process in turn
        # After a failure a process manager would kill the other keepers, which would leave processes of their programs.
        os._exit(0 if self._alone else self._program.exit_code)

    # -- states -----------------------------------------------------------------------------------

    def _advance(self) -> str:
        """Go on to the state that follows from what has happened; return it."""
        if self._state == State.DRAINING and self._is_drained():
            self._report_end()
            self._state = State.REPORTING
            if self._program.status != 0 or self._ordered or os.getppid() != self._settings.parent:
                self._connection.flush()  # ddlrun need not wait for this
                remove_leftovers()  # after a success, MPI has done so, or the agent does
        if self._state == State.REPORTING and not self._must_wait_for_ddlrun():
            self._leave()
            self._state = State.LEAVING
        if self._state == State.LEAVING and (self._handed_over or not self._connection.open):
            self._state = State.GONE
        return self._state

    def _leave(self) -> None:
        if self._settings.local_rank == 0 and is_daemon(self._settings.parent):
            self._connection.send(protocol.HANDOVER)
            self._connection.flush()
        else:
            self._connection.finish_sending()

    def _continue_daemon(self) -> None:
        """Continue a stopped daemon or agent: MPI waits for it without a limit, in MPI_Init for example."""
        daemon = "a daemon of the process manager" if self._settings.orders is None else "ddlrun's agent"
        self.send(protocol.NOTE, f"{daemon} on {os.uname().nodename} was stopped, and was continued")
        send_signal(self._settings.parent, signal.SIGCONT)

    def _leave_host(self) -> None:
        """See to the end of the process manager, or its daemon on this host."""
        if os.getppid() != self._settings.parent:
            remove_session_folder()
        elif self._handed_over or self._alone or self._connection.timed_out:
            watch_daemon(self._settings.parent, self._connection, over=self._over)

    def _is_drained(self) -> bool:
        if not self._program.pipes and not has_children():
            return not self._awaits_orders()
        overdue = max(self._program.ended_at, self._escalation.last_order) + UNKILLABLE_SECONDS
        if time.monotonic() <= overdue:
            return False
        self.send(protocol.NOTE, f"{self._settings.label}: cannot end processes {list_descendants()}")
        return True

    def _remove_container(self, container: Container) -> None:
        """Start the removal of the container of a program that has failed or was to end, unless there is none.

        Podman exits with 0 if SIGTERM comes while it creates a container, and leaves the container there.
        """
        ended_well = self._program.status == 0 and not self._ordered
        if self._program.guard is not None and not ended_well:
            self._escalation.hold(container.remove())

    def _awaits_orders(self) -> bool:
        """Return True while the agent may still report that the program, which has failed, has called MPI_Abort."""
        possible = self._orders is not None and self._program.status != 0
        return possible and time.monotonic() < self._program.ended_at + ORDER_SECONDS

    def _must_wait_for_ddlrun(self) -> bool:
        """Return True while ddlrun, which may itself wait for a slow reader, has to read the report or reply to it."""
        must_reply = self._program.status != 0 and not self._may_leave
        return self._connection.open and (self._connection.unsent > 0 or must_reply)

    def _report_end(self) -> None:
        """Report the end, and whether another process has a port that a failed program was to have."""
        end = self._program.report_end(ordered=self._ordered, reason=self._reason)
        end.taken_port = next(filter(in_use, self._settings.ports if end.exit_code else ()), 0)
        self._connection.send(protocol.ENDED, end.pack())

    # -- events -----------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the next event or deadline, and react to it."""
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        guard = self._program.guard
        if guard is not None and not guard.silent:
            poll.register(guard.fileno(), select.POLLIN)
        for fd in self._input_fds():
            poll.register(fd, select.POLLIN)
        if self._program.input is not None and self._program.input.waiting:
            poll.register(self._program.input.fd, select.POLLOUT)
        if self._connection.open:
            poll.register(self._connection.fileno(), select.POLLIN | (select.POLLOUT if self._connection.unsent else 0))
        events = poll.poll(self._milliseconds_to_deadline())
        if guard is not None and not events:
            guard.resume()
        for number in self._signals.take():
            self._on_signal(number)
        for fd, event in events:
            self._on_event(fd, event)
        if self._program.reap_children():
            self._on_program_end()
        self._on_time(time.monotonic())

    def _input_fds(self) -> list[int]:
        """Return the descriptors of the program's output, unless too much of it waits to be sent, and of reports."""
        pipes = [*self._program.pipes] if self._connection.unsent < MOST_UNSENT else []
        if self._snapshot is not None:
            pipes.append(self._snapshot.fd)
        return pipes if self._orders is None else [self._orders, *pipes]

    def _milliseconds_to_deadline(self) -> float:
        now = time.monotonic()
        deadline = min(now + LONGEST_WAIT, self._connection.deadline(), self._escalation.deadline())
        if self._usage is not None:
            deadline = min(deadline, self._usage.deadline)
        waits_for_orders = self._state == State.DRAINING and self._awaits_orders()
        if waits_for_orders or (self._state not in BEFORE_THE_END and (self._program.pipes or has_children())):
            deadline = min(deadline, now + DRAIN_INTERVAL)
        return max(0.0, (deadline - now) * 1000 + 1)

    def _on_event(self, fd: int, event: int) -> None:
        if fd in self._program.pipes:
            self._pass_on(fd)
        elif self._program.input is not None and fd == self._program.input.fd:
            self._feed_program(self._program.input)
        elif fd == self._orders:
            self._on_abort(fd)
        elif self._snapshot is not None and fd == self._snapshot.fd:
            self._on_snapshot(self._snapshot)
        elif self._connection.open and fd == self._connection.fileno():
            if event & ~select.POLLOUT:
                for kind, text in self._connection.receive():
                    self._on_message(kind, text)
            if event & select.POLLOUT:
                self._connection.flush()

    def _on_message(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.SIGNAL:
            if not self._warnings.has(int(text), time.monotonic()):
                self._signal_program(int(text))
        elif kind in (protocol.INPUT, protocol.RESIZE) and self._program.input is not None:
            self._on_input(self._program.input, kind, text)
        elif kind == protocol.LEAVE:
            self._may_leave = True
        elif kind == protocol.HANDED_OVER:
            self._handed_over = True
        elif kind == protocol.OVER:
            self._over = True
        else:
            self._on_order(kind, text)

    def _on_order(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.TERMINATE:
            self._order_end(float(text))
        elif kind == protocol.TAKE_SNAPSHOT:
            self._begin_snapshot()
        elif kind == protocol.MEASURE:
            self._measure(float(text))
        elif kind == protocol.SWEEP:
            kill_run(os.environ.get("DDLRUN_RUN", ""))

    def _on_signal(self, number: int) -> None:
        if number in WARNINGS:
            if not os.environ.get("SLURM_STEP_ID", "").isdecimal():  # Slurm signals every process of its step
                self._signal_program(number)
            self._warnings.add(number, time.monotonic())
            self.send(protocol.SIGNALLED, str(number))
            return
        if os.getppid() != self._settings.parent:
            self._reason = self._reason or f"{self._settings.manager} is gone"
        self._order_end(self._settings.grace)

    def _on_abort(self, fd: int) -> None:
        """Kill the program, which has called MPI_Abort: some MPI libraries go on after that, and end on their own."""
        code = os.read(fd, LONGEST_ORDER)
        os.close(fd)
        self._orders = None
        if code and self._state in (*BEFORE_THE_END, State.DRAINING):
            self._reason = f"it called MPI_Abort with code {int(code)}"
            self._program.abort(int(code))

    def _on_loss(self, reason: str) -> None:
        self._alone = self._state != State.LEAVING
        self._reason = self._reason or reason
        self._order_end(self._settings.grace)

    def _on_program_end(self) -> None:
        self._stop_snapshot()
        self._ordered = self._state == State.TERMINATING
        self._escalation.clear_strays(self._program.ended_at, ordered=self._ordered)
        if self._settings.container is not None:
            self._remove_container(self._settings.container)
        self._state = State.DRAINING
        self._stop_measuring()

    def _on_time(self, now: float) -> None:
        self._connection.keep_alive(now)
        self._escalation.signal_due(now)
        if self._usage is not None and now >= self._usage.deadline:
            self._report_usage(self._usage, now)
        if self._watches_daemon and self._daemon_stop.stays_stopped(now):
            self._continue_daemon()
        if self._state not in BEFORE_THE_END and not has_children():  # no process is left that could write more
            for fd in list(self._program.pipes):
                while self._pass_on(fd):
                    pass
                self._program.close_pipe(fd)

    # -- reactions --------------------------------------------------------------------------------

    def _order_end(self, grace: float) -> None:
        """End the program: SIGTERM now, SIGKILL after the grace, which a second order can only make shorter."""
        if self._state == State.RUNNING:
            # A program that is exiting ends by itself, and its end may be the reason for the order.
            self._state = State.EXITING if is_exiting(self._program.pid) else State.TERMINATING
            self._escalation.terminate(self._program.pid)
            if self._program.terminal:  # interactive shells ignore SIGTERM
                send_signal(self._program.pid, signal.SIGHUP)
        self._escalation.kill_by(time.monotonic() + grace)

    def _on_input(self, stdin: ProgramInput, kind: bytes, text: bytes) -> None:
        if kind == protocol.RESIZE:
            stdin.resize(*map(int, text.split()))
        else:
            stdin.add(text)
            self._feed_program(stdin)

    def _feed_program(self, stdin: ProgramInput) -> None:
        if stdin.flush() and self._state in BEFORE_THE_END:
            self.send(protocol.INPUT_WANTED, "")

    def _signal_program(self, number: int) -> None:
        if self._state in BEFORE_THE_END:
            for pid in find_signal_targets(self._program.pid, number):
                send_signal(pid, number)

    def _begin_snapshot(self) -> None:
        from ddlrun.keeper.stacks.snapshot_process import SnapshotProcess  # noqa: PLC0415 - for stalls alone

        if self._snapshot is None and self._state in BEFORE_THE_END:
            self._snapshot = SnapshotProcess(self._program.pid, SNAPSHOT_SECONDS)

    def _on_snapshot(self, snapshot: SnapshotProcess) -> None:
        text = snapshot.read()
        if text is not None:
            self._snapshot = None
            self._connection.send(protocol.SNAPSHOT, text)

    def _stop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.stop()
            self._snapshot = None

    def _measure(self, interval: float) -> None:
        """Report the use of resources from now on, until the program ends."""
        from ddlrun.keeper.usage.rank import UsageReporter  # noqa: PLC0415 - for ranks that run longer than a moment

        if self._program.guard is None or self._state not in BEFORE_THE_END:
            return
        try:
            host = self._open_host(interval) if self._settings.local_rank == 0 else None
            self._usage = UsageReporter(self._program.guard.pid, interval, self._program.started_at, host)
        except UNREADABLE as error:
            self._end_measuring(error)

    def _open_host(self, interval: float) -> HostUsageReader:
        from ddlrun.keeper.usage.gpu_ranks import GpuRanks  # noqa: PLC0415 - once per host
        from ddlrun.keeper.usage.gpus import GpuUsageReader  # noqa: PLC0415 - once per host
        from ddlrun.keeper.usage.host import HostUsageReader  # noqa: PLC0415 - once per host

        ranks = GpuRanks(os.environ, self._settings.rank, self._settings.size)
        return HostUsageReader(GpuUsageReader(ranks, interval))

    def _stop_measuring(self) -> None:
        if self._usage is not None:
            self._usage.stop()
            self._usage = None

    def _report_usage(self, usage: UsageReporter, now: float) -> None:
        if self._connection.unsent:  # ddlrun has to read that first
            usage.postpone(now)
            return
        try:
            for kind, text in usage.report(now):
                if kind != protocol.NOTE or self._state == State.RUNNING:  # an order ends nvidia-smi, too
                    self.send(kind, text)
        except UNREADABLE as error:
            self._end_measuring(error)

    def _end_measuring(self, error: Exception) -> None:
        """Report no use of resources from now on: on this kernel, files of /proc have another content."""
        self._stop_measuring()
        self.send(protocol.NOTE, f"{self._settings.label}: no samples of its use of resources: {error!r}")

    def _pass_on(self, fd: int) -> bool:
        """Send on what a pipe holds; return False if that is nothing."""
        kind = self._program.pipes.get(fd)
        data = b"" if kind is None else self._program.read(fd)
        if kind is not None and data:
            self._connection.send(kind, data)
            self._connection.flush()
            if self._program.input is not None:
                self._program.input.end_again()
        return data != b""
