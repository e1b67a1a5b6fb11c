"""The supervision of a job from the start of its process manager to its end: its parts, and the event loop."""

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddlrun.errors import EXIT_SIGNAL
from ddlrun.keeper import protocol
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.remote.manager_session import Process
from ddlrun.supervise.cause import EndCause
from ddlrun.supervise.ending import Ending, Phase
from ddlrun.supervise.examinations import Examinations
from ddlrun.supervise.keeper_connection import Hello, KeeperConnection, PeerState, decode_text
from ddlrun.supervise.keepers import KeeperEvents, Keepers
from ddlrun.supervise.limits import JobLimits, explain_silence
from ddlrun.supervise.listener import Listener
from ddlrun.supervise.manager_process import ManagerProcess
from ddlrun.supervise.output import STATUS_SECONDS, Output, status_line
from ddlrun.supervise.ranks import Ranks
from ddlrun.supervise.relays import Relays
from ddlrun.supervise.sampling import Sampling
from ddlrun.supervise.signals import Signals, SignalWarnings
from ddlrun.supervise.standard_input import InputForwarder
from ddlrun.wire.loop import NEVER, READ, Loop

if TYPE_CHECKING:
    from ddlrun.agent.job import Job

LONGEST_WAIT = 5.0
# The interval of checks while the job or the process manager is about to end.
END_INTERVAL = 0.1
NO_SUSPENSION = (
    "note: Ctrl-Z does not suspend a job, as its ranks would lose ddlrun; Ctrl-C ends it. "
    "To get the shell back, start ddlrun with & and its output in a file"
)
# Output that slow readers have not taken is waited for, unless the user or a limit ended the job.
REQUESTED_SECONDS = 1.0
TextHandler = Callable[[KeeperConnection, int, str], None]
"""Takes the text of a message of the keeper of a rank. May raise ProtocolError."""


class Supervision:
    """One process manager, its ranks' keepers and ddlrun's own streams.

    Each part has its own state, and knows only parts that are made before it.
    """

    cause_in_view = False
    """Whether the last lines of the rank that failed first are the last on the console."""

    def __init__(
        self,
        options: SupervisionOptions,
        job: SupervisedJob,
        files: RunDir,
        listener: Listener,
        process: Process,
        signals: Signals,
        relays: Relays | None = None,
    ) -> None:
        """Supervise a running process manager; keepers connect to the listener, and its relays, if it has any."""
        self._options, self._signals = options, signals
        self._loop = loop = Loop()
        loop.watch(signals.wake, READ, lambda _: None)  # `take` empties it
        self._output = output = Output(options, job.ranks, files, loop)
        self.ranks = ranks = Ranks(job)
        self._limits = limits = JobLimits(options, ranks, process.pid)
        self._manager = manager = ManagerProcess(process, job, loop, self._on_manager_output, relays)
        events = KeeperEvents(
            self._on_message, self._on_hang_up, self._on_violation, self._on_unproven, self._on_too_many_files
        )
        self._keepers = keepers = Keepers(listener, loop, events, ranks=job.ranks)
        self._ending = Ending(ranks, limits, keepers, manager, grace=options.grace, tell=output.tell)
        self._input = InputForwarder(options.input, loop, lambda: self._on_signal(signal.SIGINT))
        self._samples = samples = Sampling(options.sample_interval, job.ranks, files, output.tell)
        self._warnings = SignalWarnings()
        self._examinations = Examinations(
            options, files, limits, keepers, self._ending.begin, output.tell, samples.gpu_utilization
        )
        self._ending.examine = self._examinations.begin_last
        self._on_text: dict[bytes, TextHandler] = {
            protocol.BOUND: lambda _, rank, text: ranks.bind(rank, text),
            protocol.SESSION_FOLDER: lambda peer, _, text: ranks.add_session_folder(peer.host, text),
            protocol.SNAPSHOT: lambda _, rank, text: self._examinations.add_snapshot(rank, text),
            protocol.USAGE: lambda peer, rank, text: samples.collector.add_rank(rank, peer.host, text),
            protocol.HOST_USAGE: lambda peer, _, text: samples.collector.add_host(peer.host, text),
            protocol.NCCL_LOG: lambda _, rank, text: self._examinations.nccl_logs.add(rank, text),
            protocol.NOTE: lambda _peer, _rank, text: output.tell(text),
            protocol.SIGNALLED: self._on_signalled,
            protocol.LOST: self._on_farewell,
            protocol.INPUT_WANTED: lambda peer, _rank, _text: self._input.request(peer),
            protocol.HANDOVER: lambda peer, _rank, _text: self._ending.hand_over(peer),
        }

    def attend(self, loop: Loop, job: "Job | None") -> None:
        """Also see to the events of another loop, and to the reports of a job on agents."""
        self._loop.watch_loop(loop)
        if job is not None:
            job.on_report = self._manager.add_report

    def run(self) -> Outcome:
        """Run until the process manager and all ranks have ended; return the outcome."""
        try:
            while not self._ending.is_over(time.monotonic()):
                self._loop.wait(self._seconds_to_deadline(time.monotonic()))
                self._on_time(time.monotonic())
        finally:
            self._input.close()
        if not self.ranks.complete:  # the process manager may have failed by itself, and left daemons behind
            self.ranks.ended_while_starting = True
        self._manager.read_rest()
        return self._ending.outcome()._replace(unprinted_bytes=self._finish())

    # -- time -------------------------------------------------------------------------------------

    def _seconds_to_deadline(self, now: float) -> float:
        """Return the time in which nothing has to be done unless an event occurs."""
        deadlines = [
            now + LONGEST_WAIT,
            self._output.tick(now, reading=self._keepers.reading),
            self._limits.heartbeat.deadline(),
            self._samples.deadline(),
        ]
        if self._ending.reason is None:
            limit = NEVER if self._examinations.awaits_limit else self._limits.deadline()
            deadlines += limit, self._warnings.deadline(), self._examinations.deadline()
        if self._ending.phase is not Phase.RUNNING or not self._manager.running:
            deadlines.append(now + END_INTERVAL)
        if self._options.status_line or self._options.stall:
            deadlines.append(now + STATUS_SECONDS)
        return max(0.0, min(deadlines) - now)

    def _on_time(self, now: float) -> None:
        """Do what has become due, and react to signals."""
        self._ending.begin(self._output.failure(now))
        # While a slow terminal or pipe has too much to take, the ranks that write wait.
        self._keepers.read(now, reading=not self._output.full or self._ending.reason is not None)
        for number in self._signals.take():
            self._on_signal(number)
        if self._ending.reason is None:
            self._check_limits(now)
        self._check_heartbeats(now)
        self._samples.collect(now, self._keepers)
        if self._manager.stays_stopped(now) and self._manager.resume():
            self._output.tell(f"{self._manager.name} was stopped while the job ran, and was resumed")
        self._ending.advance(now)
        self._examinations.advance(now, ends=self._ending.reason is not None)
        if self._options.status_line:
            self._output.draw_status(now, lambda: self._status(now))

    def _check_limits(self, now: float) -> None:
        for number, reached in self._warnings.take_due(now):
            if number in self._options.forward:
                self._keepers.send_signal(number, reached)
        self._examinations.end_at_limit(self._limits.exceeded(now))
        if (message := self._limits.early_ends(now)) is not None:
            self._output.tell(message)

    def _check_heartbeats(self, now: float) -> None:
        silent = {peer: it for peer, it in self._limits.heartbeat.beat(now, self._keepers).items() if not peer.watching}
        for peer in silent:
            if peer.rank is None and 0 <= peer.greeted_rank < self.ranks.job.ranks:  # its HELLO has not arrived
                peer.host = self.ranks.job.host_of(peer.greeted_rank)
            elif peer.running:
                self._lose(peer)
                self.ranks.lost_hosts.add(peer.host)
        reachable = [peer.host for peer, is_reachable in silent.items() if is_reachable]
        self.ranks.unswept.update(reachable)
        self.ranks.unwatched.update(reachable)
        if silent:
            self._ending.begin(explain_silence(silent, self._options.heartbeat))

    def _on_signal(self, number: int) -> None:
        if number in self._options.forward:
            self._keepers.send_signal(number)
        elif number == signal.SIGTSTP:
            self._output.tell(NO_SUSPENSION)
        elif number == signal.SIGWINCH:
            self._input.resize()
        elif self._ending.reason is None:
            if self._options.status_line:
                grace = f"{self._options.grace:g} s"
                self._output.tell(f"ending the job within {grace}; press Ctrl-C again to kill it at once")
            self._ending.begin(EndCause.SIGNAL.reason(exit_code=EXIT_SIGNAL + number, signal=number))
        elif number != signal.SIGPIPE:
            self._ending.hurry()

    def _status(self, now: float) -> str:
        return status_line(
            seconds=now - self._limits.started_at,
            running=len(self.ranks.running),
            ranks=self.ranks.job.ranks,
            silent=now - self._limits.last_output,
            stalled=self._limits.stalls.stalled_ranks(),
        )

    # -- the ranks ----------------------------------------------------------------------------------

    def _on_message(self, peer: KeeperConnection, kind: bytes, text: bytes) -> None:
        rank = peer.rank
        if kind == protocol.HELLO:
            self._on_start(peer, Hello.parse(text, self.ranks.job.ranks))
        elif kind == protocol.ALTERED:
            raise protocol.ProtocolError(decode_text(text))
        elif rank is None:
            return
        elif kind in protocol.OUTPUT:
            self._limits.add_output(rank, peer.heard_at)
            self._output.ranks.write(rank, int(kind == protocol.ERR), text)
        elif kind == protocol.ENDED:
            self._on_end(peer, rank, protocol.RankEnd.parse(text))
        elif kind in self._on_text:
            self._on_text[kind](peer, rank, decode_text(text))

    def _on_start(self, peer: KeeperConnection, hello: Hello) -> None:
        self.ranks.start(hello.rank, hello.host)
        peer.introduce(hello)
        self._output.ranks.start(hello.rank, hello.host)
        self._limits.start(hello.rank, peer.since, peer.heard_at)
        if self.ranks.complete:  # no other keeper will connect
            self._keepers.stop_listening()
        self._ending.start_rank(peer)

    def _on_end(self, peer: KeeperConnection, rank: int, end: protocol.RankEnd) -> None:
        peer.state = PeerState.ENDED
        self._input.end(rank)
        self._output.ranks.end(rank, failed=end.exit_code != 0)
        self._limits.end(rank)
        self._examinations.end(rank)
        self.ranks.end(peer, rank, end)
        self._ending.end_rank(peer, end)

    def _on_hang_up(self, peer: KeeperConnection) -> None:
        """React to a closed connection: the keeper has left, or was killed, or the network failed."""
        self.ranks.add_unwatched(peer)
        if peer.running:
            self._lose(peer)
            self._ending.lose_rank(peer)

    def _on_violation(self, peer: KeeperConnection, problem: str) -> None:
        """End the job after a keeper's connection carried something other than the keeper's messages."""
        if peer.running:
            self._lose(peer)
        if peer.rank is not None:
            self.ranks.unswept.add(peer.host)
            self._ending.begin(EndCause.DISTURBED_CONNECTION.reason(label=peer.label, problem=problem))
        else:
            self._on_unproven(peer.greeted_rank, problem)

    def _on_unproven(self, rank: int, problem: str) -> None:
        """End the job after a connection was disturbed whose keeper has claimed a rank, but not named it."""
        job = self.ranks.job
        label = f"rank {rank} on {job.host_of(rank)}" if 0 <= rank < job.ranks else "a keeper"
        self._ending.begin(EndCause.DISTURBED_CONNECTION.reason(label=label, problem=problem))

    def _on_too_many_files(self) -> None:
        self._ending.begin(EndCause.TOO_MANY_FILES.reason(ranks=self.ranks.job.ranks))

    def _on_signalled(self, peer: KeeperConnection, rank: int, text: str) -> None:
        self._warnings.add(protocol.parse_number(text, signal.NSIG - 1), rank, peer.heard_at)

    def _on_farewell(self, peer: KeeperConnection, _rank: int, text: str) -> None:
        peer.farewell = self._limits.heartbeat.explain_farewell(text, peer.heard_at)

    def _lose(self, peer: KeeperConnection) -> None:
        """Expect nothing more of a rank whose keeper will report nothing more."""
        self.ranks.lose(peer)
        if peer.rank is not None:
            self._input.end(peer.rank)
            self._limits.end(peer.rank, lost=True)
            self._output.ranks.end(peer.rank)

    # -- the process manager and the end ------------------------------------------------------------

    def _on_manager_output(self, stream: int, chunk: bytes, for_user: bool) -> None:  # noqa: FBT001 - a callback
        reason = self._ending.reason
        # Once ddlrun ends the job for a failure, what the process manager says about the failed rank adds nothing.
        self._output.write_manager(stream, chunk, visible=for_user and (reason is None or reason.exit_code == 0))
        if self._manager.refused_spawn and self.ranks.any_started:
            # The program may not notice: mpi4py.futures waits for the processes without a limit.
            self._ending.begin(EndCause.REFUSED_SPAWN.reason())

    def _finish(self) -> int:
        """Write what is left, and close everything; return the number of bytes of output that were not printed."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for peer in self._keepers.peers.values():
            if peer.rank is not None:
                end = self.ranks.ends.get(peer.rank)
                self._output.ranks.end(peer.rank, failed=end is not None and end.exit_code != 0)
        self.cause_in_view = self._output.ranks.conclude(self._ending.outcome())
        reason = self._ending.reason
        seconds = REQUESTED_SECONDS if reason is not None and reason.requested else NEVER
        self._examinations.nccl_logs.examine()
        self._keepers.close()
        failed = reason is not None or self._manager.exit_code != 0
        unprinted = self._output.finish(seconds, lambda: {*self._signals.take()} - {signal.SIGWINCH}, failed=failed)
        self._loop.close()
        return unprinted
