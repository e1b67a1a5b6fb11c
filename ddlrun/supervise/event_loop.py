"""The supervision of a job from the start of its process manager to its end: the event loop."""

import select
import signal
import time

from ddlrun.errors import EXIT_SIGNAL
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.remote.manager_session import Process
from ddlrun.supervise.cause import EndCause
from ddlrun.supervise.console import STATUS_SECONDS, status_line
from ddlrun.supervise.heartbeat import explain_silence
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.keeper_reactions import KeeperReactions
from ddlrun.supervise.listener import Listener
from ddlrun.supervise.manager_process import read_now
from ddlrun.supervise.readers import Readers
from ddlrun.supervise.signals import Signals
from ddlrun.supervise.standard_input import STDIN
from ddlrun.supervise.supervision_state import SupervisionState
from ddlrun.supervise.termination import Phase

LONGEST_WAIT = 5.0
# The interval of checks while the job or the process manager is about to end.
END_INTERVAL = 0.1
# After the process manager's end its keepers have this long to report the ends of their programs.
REPORT_SECONDS = 1.0
NO_SUSPENSION = (
    "note: Ctrl-Z does not suspend a job, whose ranks would lose ddlrun; Ctrl-C ends it. "
    "To have the shell back, start ddlrun with & and its output in a file"
)
# Output that slow readers have not taken is waited for, unless the user or a limit ended the job.
NEVER, REQUESTED_SECONDS = 1e9, 1.0


class Supervision:
    """One process manager, its ranks' keepers and ddlrun's own streams."""

    def __init__(
        self, options: SupervisionOptions, job: SupervisedJob, files: RunDir, listener: Listener, process: Process
    ) -> None:
        """Prepare the supervision of a running process manager; keepers connect to the listener."""
        state = self._state = SupervisionState(options, job, files, process)
        self._options, self._ranks = options, job.ranks
        self._console, self._manager = state.console, state.manager
        self._epoll, self._readers = state.epoll, Readers(state.epoll)
        self._stalls, self._limits = state.stalls, state.limits
        self._heartbeat, self._warnings = state.heartbeat, state.warnings
        self._reactions = KeeperReactions(state, listener, files)
        self._keepers, self._termination = self._reactions.keepers, self._reactions.termination
        self._examinations = self._reactions.examinations
        self.cause_in_view = False
        """Whether the last lines of the rank that failed first are the last on the console."""

    @property
    def record(self) -> JobRecord:
        """The record of the job."""
        return self._state.record

    def run(self, signals: Signals) -> Outcome:
        """Stay until the process manager and all ranks have ended; return the outcome."""
        for fd in (signals.wake, *self._manager.pipes):
            self._epoll.register(fd, select.EPOLLIN)
        try:
            while not self._is_over(time.monotonic()):
                self._readers.await_room(self._console.waiting)
                events = self._epoll.poll(self._seconds_to_deadline(time.monotonic()))
                self.record.pause = self._heartbeat.explain_pause(time.monotonic())
                for fd, event in events:
                    self._on_event(fd, event, signals)
                self._on_time(time.monotonic(), signals)
        finally:
            self._reactions.input.close()
        if not self._keepers.complete:  # the process manager may have failed by itself, and left daemons behind
            self.record.ended_while_starting = True
        for fd in self._manager.pipes:
            while self._read_manager(fd):
                pass
        return self._outcome()._replace(unprinted_bytes=self._finish(signals))

    def _is_over(self, now: float) -> bool:
        if self._manager.running:
            return False
        since_end = self._manager.seconds_since_end(now)
        if not self._keepers.remaining:
            return self._termination.daemons_ended(now)
        if not self._termination.ending and since_end > REPORT_SECONDS:
            self._termination.begin(self.record.explain(None, self._manager, running=True))
        return self._termination.overdue(now)

    # -- events -----------------------------------------------------------------------------------

    def _on_event(self, fd: int, event: int, signals: Signals) -> None:
        if fd == signals.wake:
            read_now(fd)
        elif fd == STDIN:
            if self._reactions.input.event(fd):
                self._on_signal(signal.SIGINT)
        elif fd not in self._manager.pipes:
            if not (self._readers.on_event(fd, event) or self._manager.ssh_clients.end(fd)):
                self._keepers.event(fd, event)
        elif not self._read_manager(fd) and event & select.EPOLLHUP:
            self._epoll.unregister(fd)
            del self._manager.pipes[fd]

    def _seconds_to_deadline(self, now: float) -> float:
        """Return the time in which nothing has to be done unless an event occurs."""
        deadlines = [
            now + LONGEST_WAIT,
            self._console.tick(now, reading=self._keepers.reading),
            self._heartbeat.deadline(),
            self._state.samples.deadline(),
        ]
        if not self._termination.ending:
            limit = float("inf") if self._examinations.awaits_limit else self._limits.deadline()
            deadlines += limit, self._warnings.deadline(), self._readers.deadline(), self._examinations.deadline()
        if self._termination.phase is not Phase.RUNNING or not self._manager.running:
            deadlines.append(now + END_INTERVAL)
        if self._options.status_line or self._options.stall:
            deadlines.append(now + STATUS_SECONDS)
        return max(0.0, min(deadlines) - now)

    def _on_time(self, now: float, signals: Signals) -> None:
        """Do what has become due, and react to signals."""
        self._console.flush()
        self._reactions.end_job(self._console.closed() or self._readers.all_gone(now))
        # While a slow terminal or pipe has too much to take, the ranks that write wait.
        self._keepers.read(now, reading=not self._console.output.full or self._termination.ending)
        for number in signals.take():
            self._on_signal(number)
        if signals.take_resize():
            self._reactions.input.resize()
        if not self._termination.ending:
            self._check_limits(now)
        self._check_heartbeats(now)
        self._state.samples.collect(now, self._keepers)
        if self._manager.stays_stopped(now) and self._manager.resume():
            self._console.tell(f"{self._manager.name} was stopped while the job ran, and was continued")
        all_gone = len(self.record.ends) == self._ranks and not self._keepers.remaining
        self._termination.advance(now, all_gone=all_gone)
        if not self._termination.ending:
            self._examine(now)
        if self._options.status_line:
            self._console.draw_status(now, lambda: self._status(now))

    def _check_limits(self, now: float) -> None:
        for number, reached in self._warnings.take_due(now):
            if number in self._options.forward:
                self._keepers.send_signal(number, reached)
        self._examinations.end_at_limit(self._limits.exceeded(now), now)
        self._reactions.end_after_signal(now)
        message = self._limits.report_early_ends(now, self.record.ends)
        if message is not None:
            self._console.tell(message)

    def _examine(self, now: float) -> None:
        if self._options.stall:
            self._examinations.check_stall(now)
        self._examinations.advance(now)

    def _check_heartbeats(self, now: float) -> None:
        silent = [keeper for keeper in self._heartbeat.beat(now, self._keepers) if not keeper.peer.watching]
        for peer in [keeper.peer for keeper in silent if keeper.peer.running]:
            self._reactions.lose_rank(peer)
            self.record.lost_hosts.add(peer.host)
        reachable = [keeper.peer.host for keeper in silent if keeper.reachable]
        self.record.unswept.update(reachable)
        self.record.unwatched.update(reachable)
        if silent:
            self._reactions.end_job(explain_silence(silent, self._options.heartbeat))

    def _on_signal(self, number: int) -> None:
        if number in self._options.forward:
            self._keepers.send_signal(number)
        elif number == signal.SIGTSTP:
            self._console.tell(NO_SUSPENSION)
        elif self._termination.ending:
            if number != signal.SIGPIPE:
                self._termination.hurry()
        else:
            if self._options.status_line:
                grace = f"{self._options.grace:g} s at most"
                self._console.tell(f"ending the job, in {grace}; Ctrl-C again kills it at once")
            self._reactions.end_job(EndCause.SIGNAL.reason(exit_code=EXIT_SIGNAL + number, signal=number))

    # -- the process manager and the end -----------------------------------------------------------------------

    def _read_manager(self, fd: int) -> bool:
        """Log and print what the process manager wrote to a pipe; return False if that is nothing."""
        chunk = self._manager.read(fd)
        if chunk:
            reason = self._termination.reason
            # Once ddlrun ends the job for a failure, what the process manager says about the failed rank adds nothing.
            visible = self._manager.is_printed(fd) and (reason is None or reason.exit_code == 0)
            self._console.write_manager(self._manager.pipes[fd], chunk, visible=visible)
            if self._manager.refused_spawn and self._limits.any_started:
                # The program may not notice: mpi4py.futures waits for the processes without a limit.
                self._reactions.end_job(EndCause.REFUSED_SPAWN.reason())
        return bool(chunk)

    def _finish(self, signals: Signals) -> int:
        """Write what is left, and close everything; return the number of bytes of output that were not printed."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for peer in self._keepers.peers.values():
            if peer.rank is not None:
                end = self.record.ends.get(peer.rank)
                self._console.output.end(peer.rank, failed=end is not None and end.exit_code != 0)
        self.cause_in_view = self._console.output.conclude(self._outcome())
        reason = self._termination.reason
        seconds = REQUESTED_SECONDS if reason is not None and reason.requested else NEVER
        failed = reason is not None or self._manager.exit_code != 0
        unprinted = self._console.finish(seconds, signals.take, failed=failed)
        self._keepers.close()
        self._manager.ssh_clients.close()
        self._epoll.close()
        return unprinted

    def _outcome(self) -> Outcome:
        now = time.monotonic()
        return self.record.outcome(
            self.record.explain(self._termination.reason, self._manager, ranks=self._ranks),
            seconds=now - self._limits.started_at,
            until_end=min(now, self._termination.since) - self._limits.started_at,
            manager=self._manager,
        )

    def _status(self, now: float) -> str:
        return status_line(
            seconds=now - self._limits.started_at,
            running=sum(peer.running for peer in self._keepers.peers.values()),
            ranks=self._ranks,
            silent=now - self._state.last_output,
            stalled=self._stalls.stalled_ranks(),
        )
