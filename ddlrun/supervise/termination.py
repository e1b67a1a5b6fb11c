"""The end of a job: a state machine from the reason for it to the end of the process manager.

=======  =================================================  ================================================
Phase    ddlrun                                             Next phase
=======  =================================================  ================================================
RUNNING  supervises the ranks                               When all ranks have ended and all keepers are
                                                            gone: IDLE. With a reason to end the job: ENDING.
IDLE     waits for the process manager; SIGTERM after 5 s,  With a reason to end the job: ENDING.
         SIGKILL 3 s later
ENDING   has sent TERMINATE to the keepers; kills the       When no rank runs: LEAVING.
         process manager's session 3 s after the grace, or
         1 s after a second signal
LEAVING  has sent LEAVE to the keepers and waits for the
         process manager; SIGTERM after 5 s, SIGKILL after
         8 s; after 1 s and 3 s if a host was lost; after
         5 s and 15 s if not all ranks have started
=======  =================================================  ================================================

In IDLE and LEAVING, a stopped process manager is continued after 2 s. Once all ranks have started, OVER is sent to the
processes that watch its daemons, which do the same there (see keeper/daemon.py).

In every phase the job is over when the process manager has ended and no keeper is connected, and no daemon is watched
or 10 s later. Keepers that are still connected 3 s after its session was killed are not waited for.
"""

import enum
import time
from collections.abc import Callable

from ddlrun.keeper import protocol
from ddlrun.supervise.cause import EndReason
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.keeper_connection import KeeperConnection, PeerState
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.manager_process import ManagerProcess

# A stopped process manager is continued when all ranks have been ended for so long.
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
# The time from a second signal until the process manager is killed.
HURRY_SECONDS = 1.0


class Phase(enum.Enum):
    """A phase of a job: see the table above."""

    RUNNING = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    LEAVING = enum.auto()


class Termination:
    """The phase of a job, and the deadlines of its end; times are those of time.monotonic()."""

    def __init__(
        self,
        keepers: Keepers,
        manager: ManagerProcess,
        record: JobRecord,
        *,
        grace: float,
        tell: Callable[[str], None],
    ) -> None:
        self._keepers, self._manager, self._record = keepers, manager, record
        self._grace = grace
        self._tell = tell
        self.phase = Phase.RUNNING
        self.reason: EndReason | None = None
        """The reason for the end, from ENDING on."""
        self.since = float("inf")
        """The time at which the job began to end."""
        self._ranks_kill_at = self._manager_resume_at = self._manager_term_at = self._manager_kill_at = float("inf")
        self._over_at = float("inf")

    @property
    def ending(self) -> bool:
        """Whether the job is being ended."""
        return self.reason is not None

    def begin(self, reason: EndReason) -> None:
        """End all ranks within the grace; only the first reason counts."""
        if self.ending:
            return
        self.reason = reason
        self._record.ended_while_starting = not self._keepers.complete
        self.phase = Phase.ENDING
        self.since = time.monotonic()
        self._ranks_kill_at = self.since + self._grace + SLACK_SECONDS
        self._keepers.send_all(protocol.TERMINATE, str(self._grace))
        if not any(peer.rank is not None for peer in self._keepers.remaining):
            self._manager.terminate()  # no rank has started

    def hurry(self) -> None:
        """Kill all ranks now, and the process manager soon."""
        self._keepers.send_all(protocol.TERMINATE, "0")
        self._ranks_kill_at = time.monotonic() + HURRY_SECONDS

    def overdue(self, now: float) -> bool:
        """Return True if keepers that are still connected will not be waited for any longer."""
        return self.ending and now > self._ranks_kill_at + SLACK_SECONDS

    def hand_over(self, peer: KeeperConnection) -> None:
        """Let a keeper leave: its connection now belongs to the process that watches the process manager's daemon."""
        peer.state = PeerState.WATCHING
        self._keepers.send(peer, protocol.HANDED_OVER)
        if self._over_at < float("inf"):
            self._keepers.send(peer, protocol.OVER)

    def let_leave(self, peer: KeeperConnection) -> None:
        """Let a keeper leave that connected only after LEAVE was sent to the others."""
        if self.phase is Phase.LEAVING:
            self._keepers.send(peer, protocol.LEAVE)

    def daemons_ended(self, now: float) -> bool:
        """Return True if no daemon is watched any more, or if they will not be waited for any longer.

        The process manager and all keepers have ended.
        """
        self._announce_end(now)
        watched = [peer for peer in self._keepers.watchers if peer.host not in self._record.lost_hosts]
        return not watched or now > self._over_at + DAEMON_SECONDS

    def advance(self, now: float, *, all_gone: bool) -> None:
        """Go on to the next phase if its time has come, and send the process manager the signals that are due.

        `all_gone`: all ranks have ended, and no keeper is connected.
        """
        if self.phase is Phase.RUNNING and all_gone:
            self._enter(Phase.IDLE, now)
        if self.phase is Phase.ENDING:
            if any(peer.running for peer in self._keepers.peers.values()):
                if now > self._ranks_kill_at:
                    self._manager.kill()
                return
            self._order_sweeps()
            self._keepers.send_all(protocol.LEAVE)
            self._enter(Phase.LEAVING, now)
        if self.phase in (Phase.IDLE, Phase.LEAVING):
            self._end_manager(now)

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        started = MANAGER_SECONDS if self._keepers.complete else STARTING_SECONDS
        term, kill = LOST_SECONDS if self._record.lost_hosts else started
        self._manager_resume_at = now + RESUME_SECONDS
        self._manager_term_at, self._manager_kill_at = now + term, now + kill
        if self._keepers.complete:
            self._announce_end(now)

    def _end_manager(self, now: float) -> None:
        if now > self._manager_resume_at and self._manager.resume():
            self._tell(f"{self._manager.name} was stopped when the job was over, and was continued")
            self._manager_resume_at = now + RESUME_SECONDS
        self._manager.end(now, term_at=self._manager_term_at, kill_at=self._manager_kill_at)

    def _announce_end(self, now: float) -> None:
        """Announce to what watches the process manager's daemons that they have to end, once."""
        if self._over_at == float("inf"):
            self._over_at = now
            for peer in self._keepers.watchers:
                self._keepers.send(peer, protocol.OVER)

    def _order_sweeps(self) -> None:
        """On hosts where a keeper was killed, order another one to kill the children of its program."""
        for peer in self._keepers.peers.values():
            if peer.host in self._record.unswept and peer.rank is not None:
                self._keepers.send(peer, protocol.SWEEP)
                self._record.unswept.remove(peer.host)
