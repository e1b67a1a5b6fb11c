"""The end of a job: its reason, and a state machine from that to the end of the process manager.

=======  =================================================  ================================================
Phase    ddlrun                                             Next phase
=======  =================================================  ================================================
RUNNING  supervises the ranks                               When all ranks have ended and all keepers are
                                                            gone: IDLE. With a reason to end the job: ENDING.
IDLE     waits for the process manager; SIGTERM after 5 s,  With a reason to end the job: ENDING.
         SIGKILL 3 s later
ENDING   examines the job, sends TERMINATE to the keepers,  When no rank runs: LEAVING.
         kills the manager's session 3 s after the grace, or
         1 s after a second signal
LEAVING  has sent LEAVE to the keepers and waits for the
         process manager; SIGTERM after 5 s, SIGKILL after
         8 s; after 1 s and 3 s if a host was lost; after
         5 s and 15 s if not all ranks have started; at once
         and after 1 s if a second signal has arrived
=======  =================================================  ================================================

In IDLE and LEAVING, a stopped process manager is resumed after 2 s. Once all ranks have started, OVER is sent to the
processes that watch its daemons, which do the same there (see keeper/daemon.py).

In every phase the job is over when the process manager has ended and no keeper is connected, and no daemon is watched
or 10 s later. Keepers that are still connected 3 s after its session was killed are not waited for.
"""

import enum
import errno
import os
import time
from collections.abc import Callable

from ddlrun.hosts import by_number
from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import RankEnd
from ddlrun.plan.outcome import Outcome
from ddlrun.supervise.cause import EndCause, EndReason, Evidence, explain
from ddlrun.supervise.keeper_connection import KeeperConnection, PeerState
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.limits import JobLimits
from ddlrun.supervise.manager_process import ManagerProcess
from ddlrun.supervise.ranks import Ranks, root_of
from ddlrun.wire.listening import HANDSHAKE_SECONDS
from ddlrun.wire.loop import NEVER

# A stopped process manager is resumed when all ranks have been ended for so long.
RESUME_SECONDS = 2.0
# The process manager may take this long to end before it gets SIGTERM, and before SIGKILL.
MANAGER_SECONDS = (5.0, 8.0)
# The same where ranks have not started. On a busy machine it may still be starting its daemons on other hosts; Grid
# Engine deletes a job one of whose daemons is killed.
STARTING_SECONDS = (5.0, 15.0)
# The same where a host was lost, for which the process manager may wait in vain.
LOST_SECONDS = (1.0, 3.0)
# The time beyond the grace for keepers and networks.
SLACK_SECONDS = 3.0
# After the process manager's end, daemons on other hosts have this long; what watches them needs less.
DAEMON_SECONDS = 10.0
# The time from a second signal until the process manager is killed, and daemons are not waited for.
HURRY_SECONDS = 1.0
# After the process manager's end its keepers have this long to report the ends of their programs.
REPORT_SECONDS = 1.0
# After a keeper has lost the process manager, that itself ends within this time, if it is on this host and has failed.
MANAGER_END_SECONDS = 0.5
# After a keeper was signalled, the process manager reports its own failure within this time if it sent the signal.
SIGNALLED_SECONDS = 5.0


class Phase(enum.Enum):
    """A phase of a job: see the table above."""

    RUNNING = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    LEAVING = enum.auto()


class Ending:
    """The phase of a job, the reason for its end, and the deadlines of that; times are those of time.monotonic()."""

    def __init__(
        self,
        ranks: Ranks,
        limits: JobLimits,
        keepers: Keepers,
        manager: ManagerProcess,
        *,
        grace: float,
        tell: Callable[[str], None],
    ) -> None:
        self._ranks, self._limits, self._keepers, self._manager = ranks, limits, keepers, manager
        self._grace = grace
        self._tell = tell
        self.phase = Phase.RUNNING
        self.reason: EndReason | None = None
        """The reason for the end, from ENDING on."""
        self.since = NEVER
        """The time at which the job began to end."""
        self._signalled: EndReason | None = None
        """The reason where a keeper has received a signal, and the time from which it counts."""
        self._signalled_until = 0.0
        self._ranks_kill_at = self._manager_resume_at = self._manager_term_at = self._manager_kill_at = NEVER
        self._over_at = NEVER
        self.examine: Callable[[EndReason, Callable[[], None]], bool] = lambda _reason, _end: False
        """Examines a job that is to end, and ends it; returns False if it does neither."""
        self._hurried = False
        """Whether a second signal has asked for the end."""

    # -- the reason -----------------------------------------------------------------------------------

    def begin(self, reason: EndReason | None) -> None:
        """End all ranks within the grace if there is a reason; only the first one counts."""
        if reason is None or self.reason is not None:
            return
        self.reason = reason
        self._ranks.ended_while_starting = not self._ranks.complete
        self.phase = Phase.ENDING
        self.since = time.monotonic()
        if not self.examine(reason, self._end_ranks):
            self._end_ranks()

    def _end_ranks(self) -> None:
        """Order the end of all ranks, unless that has been done."""
        if self.phase is not Phase.ENDING or self._ranks_kill_at < NEVER:
            return
        grace = max(0.0, self._grace - (time.monotonic() - self.since))
        self._ranks_kill_at = self.since + self._grace + SLACK_SECONDS
        self._keepers.send_all(protocol.TERMINATE, str(grace))
        has_ranks = any(peer.rank is not None for peer in self._keepers.remaining)
        # The ranks that it is about to start will be ended by their keepers.
        waits = self.reason is not None and self.reason.requested and self._ranks.job.manager.hangs_on_early_sigterm
        if not (has_ranks or waits):
            self._manager.terminate()

    def start_rank(self, peer: KeeperConnection) -> None:
        """End a rank that has started while the job ends."""
        if self.reason is not None:
            peer.send(protocol.TERMINATE, str(self._grace).encode())

    def end_rank(self, peer: KeeperConnection, end: RankEnd) -> None:
        """End the job if a rank failed or was cut off; let its keeper leave if the others have been told to."""
        if self.reason is not None:
            if self.phase is Phase.LEAVING:
                peer.send(protocol.LEAVE)
        elif end.exit_code and not end.ordered:
            self.begin(self._find_signal_before() or EndCause.RANK_FAILED.reason(exit_code=end.exit_code))
        elif end.reason:
            self._cut_off(peer, end.reason)
        elif end.ordered:
            self._signalled = EndCause.SIGNALLED_KEEPER.reason(label=peer.label, exit_code=end.exit_code or 1)
            self._signalled_until = peer.heard_at + SIGNALLED_SECONDS

    def lose_rank(self, peer: KeeperConnection) -> None:
        """End the job after a connection was closed while the program ran."""
        self._ranks.unswept.add(peer.host)
        why = peer.farewell or self._limits.pause
        if why:
            self.begin(EndCause.CUT_OFF.reason(label=peer.label, why=why))
        elif peer.error is None:
            self.begin(EndCause.CLOSED_CONNECTION.reason(label=peer.label, rank=peer.rank))
        else:
            cause = EndCause.RESET_CONNECTION if peer.error == errno.ECONNRESET else EndCause.BROKEN_CONNECTION
            self.begin(cause.reason(label=peer.label, rank=peer.rank, error=os.strerror(peer.error)))

    def _find_signal_before(self) -> EndReason | None:
        """Return the reason if a keeper was signalled before a rank failed, which lost its connection to that rank.

        A process manager may signal the keepers after any failure; with `signals_keepers` only when it ends itself.
        """
        if not self._ranks.job.manager.signals_keepers or self._signalled is None:
            return None
        return None if self._manager.ends_within(MANAGER_END_SECONDS) else self._signalled

    def _cut_off(self, peer: KeeperConnection, why: str) -> None:
        """End the job after a keeper ended its program without an order: it lost the process manager or ddlrun."""
        own_name = os.uname().nodename
        manager_ended = self._manager.ends_within(MANAGER_END_SECONDS if peer.host == own_name else 0.0)
        lost = EndCause.CUT_OFF.reason(label=peer.label, why=self._limits.pause or why)
        self.begin(self._explain(running=True) if manager_ended else lost)
        if peer.host != own_name:
            self._ranks.lost_hosts.add(peer.host)

    def _explain(self, *, running: bool = False) -> EndReason:
        """Return the reason for the end of a job whose process manager has ended; record the host that it lost.

        Where ddlrun did not run, keepers took it for lost, and ended the process manager and its daemons.
        """
        ends, pause = self._ranks.ends, self._limits.pause
        missing = self._ranks.job.ranks - len(ends)
        cut_off = {self._ranks.job.host_of(rank): end for rank, end in ends.items() if end.reason}
        manager = self._manager.end_report()
        reason = explain(Evidence(self.reason, manager, ends, missing, running=running, pause=pause, cut_off=cut_off))
        if reason.lost_host is not None:
            self._ranks.lost_hosts.add(reason.lost_host)
        return reason

    def outcome(self) -> Outcome:
        """Return the outcome. The process manager has ended, unless it could not be killed."""
        reason, now, ends = self._explain(), time.monotonic(), self._ranks.ends
        root = root_of(ends.values()) if reason.by_rank else None
        return Outcome(
            exit_code=reason.exit_code if root is None or root.ended_by_order else root.exit_code,
            signal=reason.signal,
            seconds=now - self._limits.started_at,
            reason=reason.text,
            cause=reason.cause.name.lower(),
            root=root,
            ends=tuple(ends[rank] for rank in sorted(ends)),
            lost_ranks=tuple(self._ranks.lost),
            mpirun_output=self._manager.output if reason.exit_code else "",
            until_end=min(now, self.since) - self._limits.started_at,
            requested=reason.requested,
            lost_hosts=tuple(sorted(self._ranks.lost_hosts, key=by_number)),
        )

    # -- the end --------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Kill all ranks now, and the process manager soon. A second call does nothing."""
        if self._hurried:
            return
        self._hurried, self._grace, now = True, 0.0, time.monotonic()
        self._keepers.send_all(protocol.TERMINATE, str(self._grace))
        self._ranks_kill_at = now + HURRY_SECONDS
        if self.phase is Phase.LEAVING:
            self._enter(Phase.LEAVING, now)

    def hand_over(self, peer: KeeperConnection) -> None:
        """Let a keeper leave: its connection now belongs to the process that watches the process manager's daemon."""
        peer.state = PeerState.WATCHING
        peer.send(protocol.HANDED_OVER)
        if self._over_at < NEVER:
            peer.send(protocol.OVER)

    def is_over(self, now: float) -> bool:
        """Return True if the process manager and all keepers have ended, and no daemon is watched.

        After a time it stops waiting for what does not end.
        """
        if self._manager.running:
            return False
        if self._keepers.remaining or self._keepers.arriving:
            limit = HANDSHAKE_SECONDS if self._keepers.arriving else REPORT_SECONDS
            if self.reason is None and self._manager.seconds_since_end(now) > limit:
                self.begin(self._explain(running=True))
            if self.reason is None or now <= self._ranks_kill_at + SLACK_SECONDS:
                return False
            self._leave_behind({it.host for it in self._keepers.remaining if it.rank is not None and it.acknowledged})
            return True
        self._announce_end(now)
        watched = {peer.host for peer in self._keepers.watchers} - self._ranks.lost_hosts
        if watched and now <= self._over_at + (HURRY_SECONDS if self._hurried else DAEMON_SECONDS):
            return False
        self._leave_behind(watched)
        return True

    def _leave_behind(self, hosts: set[str]) -> None:
        """Record hosts whose keepers, or what they have left to watch a daemon, do not end: they may be stopped."""
        self._ranks.unswept |= hosts
        self._ranks.unwatched |= hosts

    def advance(self, now: float) -> None:
        """Go on to the next phase if its time has come, and send the process manager the signals that are due."""
        if self._signalled is not None and now > self._signalled_until:
            self.begin(self._signalled)
        if self.phase is Phase.RUNNING and self._ranks.ended and not self._keepers.remaining:
            self._enter(Phase.IDLE, now)
        if self.phase is Phase.ENDING:
            if self._ranks.running:
                if now > self._ranks_kill_at:
                    self._manager.kill()
                return
            self._keepers.send_all(protocol.LEAVE)
            self._enter(Phase.LEAVING, now)
        if self.phase in (Phase.IDLE, Phase.LEAVING):
            self._end_manager(now)

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        started = MANAGER_SECONDS if self._ranks.complete else STARTING_SECONDS
        term, kill = LOST_SECONDS if self._ranks.lost_hosts else started
        if self._hurried:
            term, kill = 0.0, HURRY_SECONDS
        self._manager_resume_at = now + RESUME_SECONDS
        self._manager_term_at, self._manager_kill_at = now + term, now + kill
        if self._ranks.complete:
            self._announce_end(now)

    def _end_manager(self, now: float) -> None:
        if now > self._manager_resume_at and self._manager.resume():
            self._tell(f"{self._manager.name} was stopped when the job was over, and was resumed")
            self._manager_resume_at = now + RESUME_SECONDS
        self._manager.end(now, term_at=self._manager_term_at, kill_at=self._manager_kill_at)

    def _announce_end(self, now: float) -> None:
        """Announce to what watches the process manager's daemons that they have to end, once."""
        if self._over_at == NEVER:
            self._over_at = now
            for peer in self._keepers.watchers:
                peer.send(protocol.OVER)
