"""The keeper of a rank: it runs beside the user's program, from its start to the report of its end.

The process manager starts the keeper. The program is a child of the keeper's guard, a subreaper (prctl(2)): whatever
the program leaves behind becomes a child of the guard, and of the keeper if the guard is killed (guard.py). A TCP
connection leads to ddlrun: output and reports go there, orders come from there. When ddlrun, the process manager, its
daemon or the network fails, the keeper notices and ends the program.

The keeper is a state machine: see keeper_state.py. Tasks do the rest, each with its descriptor or deadline (task.py).
"""

from __future__ import annotations

import os
import time

from ddlrun.errors import PreflightError
from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.daemon import HostDuties
from ddlrun.keeper.escalation import Escalation
from ddlrun.keeper.keeper_state import BEFORE_THE_END, FINAL, UNREPORTED, Event, State, next_state
from ddlrun.keeper.leftovers import remove_leftovers
from ddlrun.keeper.processes import has_children, is_exiting, list_descendants, signal_program
from ddlrun.keeper.reports import ProgramReports
from ddlrun.keeper.signals import WARNINGS, ReceivedWarnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.nccl_log import NcclLog
    from ddlrun.keeper.program import Program
    from ddlrun.keeper.settings import KeeperSettings
    from ddlrun.keeper.signals import SignalQueue
    from ddlrun.wire.loop import Loop

LONGEST_WAIT = 5.0
# The interval at which an ended program's children and pipes are checked.
DRAIN_INTERVAL = 0.05
# The messages of ddlrun that are events.
EVENTS = {protocol.LEAVE: Event.LEAVE, protocol.HANDED_OVER: Event.HANDED_OVER, protocol.OVER: Event.OVER}


class Keeper:
    """A program, the connection to ddlrun and the state that both are in."""

    def __init__(
        self,
        loop: Loop,
        signals: SignalQueue,
        connection: LauncherConnection,
        program: Program,
        settings: KeeperSettings,
        nccl_log: NcclLog | None = None,
    ) -> None:
        """Take charge of a program, or of the record of one that was refused; `signals` existed before its start."""
        self._loop, self._signals, self._program, self._settings = loop, signals, program, settings
        self._state = State.RUNNING if program.status is None else State.DRAINING
        self._reason = ""
        self._warnings = ReceivedWarnings()
        self._connection = connection
        connection.on_loss = self._on_loss
        self._escalation = Escalation()
        self._host = HostDuties(settings, self._connection)
        self._reports = ProgramReports(loop, self._connection, settings, self._is_running, nccl_log)

    def send(self, kind: bytes, text: str) -> None:
        """Send a message to ddlrun."""
        self._connection.send(kind, text.encode(errors="replace"))

    def run(self) -> None:
        """Run until the program has ended, and exit: with its exit code only where an agent is the parent.

        ddlrun has the exit code. After a failure, mpirun would kill the other keepers, and take seconds to end.
        """
        self._host.begin(self._loop)
        self._connection.run_in(self._loop, self._on_message)
        self._escalation.join(self._loop)
        self._program.begin(self._loop, self._connection, self._on_input_taken)
        if os.getppid() != self._settings.parent:  # it ended before the kernel was told to report that
            self._on_signal(signal.SIGTERM)
        if self._state == State.RUNNING:
            self._reports.watch_world(self._program.pid, self._program.started_at, self._end_singleton)
        self._look()
        while self._state not in FINAL:
            if not self._loop.wait(DRAIN_INTERVAL if self._state in UNREPORTED else LONGEST_WAIT):
                self._program.resume()
            self._take_signals()
            self._look()
        self._host.leave_host(watch=self._state != State.GONE, over=self._state == State.OVER)
        is_by_agent = self._settings.orders is not None
        os._exit(self._program.exit_code if is_by_agent and self._state != State.ALONE else 0)

    # -- states -----------------------------------------------------------------------------------

    def _go(self, event: str) -> None:
        """Go to the state that follows from an event."""
        before, self._state = self._state, next_state(self._state, event)
        if self._state != before:
            self._enter(before)

    def _enter(self, before: str) -> None:
        """Do what a new state begins with."""
        if self._state in (State.TERMINATING, State.EXITING):
            self._escalation.terminate(self._program.pid, hang_up=self._program.terminal)
        elif self._state in UNREPORTED:
            self._clear(ordered=self._state == State.CLEARING)
        elif self._state == State.REPORTING:
            self._report_end(ordered=before == State.CLEARING)
        elif self._state == State.HANDING_OVER:
            self._connection.send(protocol.HANDOVER)
        elif self._state == State.LEAVING:
            self._connection.finish_sending()

    def _clear(self, *, ordered: bool) -> None:
        """End the reports, and begin to end what the program has left behind.

        That includes its container if it has failed or was to end: Podman exits with 0 if SIGTERM comes while it
        creates a container, and leaves the container there.
        """
        self._reports.stop()
        self._escalation.clear_strays(self._program.ended_at, ordered=ordered)
        if self._settings.container is not None and (ordered or self._program.status != 0):
            self._escalation.hold(self._settings.container.remove())

    def _report_end(self, *, ordered: bool) -> None:
        """Report the end, and remove the shared memory that the program may have left."""
        self._connection.send(protocol.ENDED, self._program.report_end(ordered=ordered, reason=self._reason).pack())
        if self._program.status != 0 or ordered or os.getppid() != self._settings.parent:
            self._connection.flush()  # ddlrun need not wait for this
            remove_leftovers()  # after a success, MPI has done so, or the agent does
        if self._program.status == 0:
            self._go(Event.LEAVE)
        if not self._connection.open:
            self._go(Event.LOST)

    def _look(self) -> None:
        """React to what no descriptor reports."""
        if self._program.reap_children():
            self._go(Event.END)
        if self._state in UNREPORTED and self._is_drained():
            self._go(Event.DRAINED)
        if self._state == State.SENDING and not self._connection.unsent:
            self._go(Event.SENT_BESIDE_DAEMON if self._host.has_daemon else Event.SENT)

    def _is_drained(self) -> bool:
        if not has_children():
            for output in self._program.outputs:
                output.drain()
            return not self._program.awaits_orders
        if time.monotonic() <= self._escalation.overdue(self._program.ended_at):
            return False
        self.send(protocol.NOTE, f"{self._settings.label}: cannot end processes {list_descendants()}")
        return True

    def _is_running(self) -> bool:
        self._take_signals()
        return self._state == State.RUNNING

    # -- events -----------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for number in self._signals.take():
            self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if number in WARNINGS:
            if not os.environ.get("SLURM_STEP_ID", "").isdecimal():  # Slurm signals every process of its step
                self._pass_on(number)
            self._warnings.add(number, time.monotonic())
            self.send(protocol.SIGNALLED, str(number))
            return
        # The kernel sends this signal when the thread ends that has forked this process. Others may take a moment more.
        if os.getppid() != self._settings.parent or is_exiting(self._settings.parent):
            self._reason = self._reason or f"{self._settings.manager} is gone"
        self._order_end(self._settings.grace)

    def _pass_on(self, number: int) -> None:
        if self._state in BEFORE_THE_END:
            signal_program(self._program.pid, number)

    def _on_loss(self, _reason: str) -> None:
        for output in self._program.outputs:  # the program can still end as it wants to
            output.go_on()
        self._go(Event.LOST)
        self._order_end(self._settings.grace)

    def _order_end(self, grace: float) -> None:
        """End the program: SIGTERM now, SIGKILL after the grace, which a second order can only make shorter."""
        if self._state == State.RUNNING:
            # A program that is exiting ends by itself, and its end may be the reason for the order.
            self._go(Event.LATE_ORDER if is_exiting(self._program.pid) else Event.ORDER)
        self._escalation.kill_by(time.monotonic() + grace)

    def _end_singleton(self, reason: str) -> None:
        if self._state == State.RUNNING:
            self._program.abort(PreflightError.exit_code, reason)

    def _on_message(self, kind: bytes, text: bytes) -> None:
        stdin = self._program.input
        if kind in EVENTS:
            self._go(EVENTS[kind])
        elif kind == protocol.TERMINATE:
            self._order_end(float(text))
        elif kind == protocol.INPUT and stdin is not None:
            stdin.add(text)
        elif kind == protocol.RESIZE and stdin is not None:
            stdin.resize(*map(int, text.split()))
        elif kind == protocol.SIGNAL and not self._warnings.has(int(text), time.monotonic()):
            self._pass_on(int(text))
        elif self._state in BEFORE_THE_END:
            self._on_request(kind, text)

    def _on_request(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.TAKE_SNAPSHOT:
            self._reports.take_snapshot(self._program.pid)
        elif kind == protocol.MEASURE:
            self._reports.measure(self._program.guard_pid, self._program.started_at, float(text))

    def _on_input_taken(self) -> None:
        if self._state in BEFORE_THE_END:
            self.send(protocol.INPUT_WANTED, "")
