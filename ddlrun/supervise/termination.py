"""The end of a job: a state machine from the reason for it to the end of mpirun.

=======  =================================================  ================================================
Phase    ddlrun                                             Next phase
=======  =================================================  ================================================
RUNNING  supervises the ranks                               When all ranks have ended and all keepers are
                                                            gone: IDLE. With a reason to end the job: ENDING.
IDLE     waits for mpirun; SIGTERM after 10 s, SIGKILL 3 s  With a reason to end the job: ENDING.
         later
ENDING   has sent TERMINATE to the keepers; kills mpirun's  When no rank runs: LEAVING.
         session 3 s after the grace, or 1 s after a
         second signal
LEAVING  has sent LEAVE to the keepers and waits for
         mpirun; SIGTERM after 5 s, SIGKILL after 15 s;
         after 1 s and 3 s if a host was lost
=======  =================================================  ================================================

In every phase the job is over when mpirun has ended and no keeper is connected.
"""

import enum
import time

from ddlrun.rank import protocol
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.mpirun import MpirunProcess
from ddlrun.supervise.root_cause import EndReason

# mpirun may take this long to end once its ranks have been ended, and a third of it before it gets SIGTERM. On a busy
# machine it may still be starting its daemons on other hosts; Grid Engine deletes a job one of whose daemons is killed.
MPIRUN_SECONDS = 15.0
# The same where a host was lost, for which mpirun may wait in vain.
LOST_SECONDS = 3.0
# The time beyond the grace for keepers and networks.
SLACK_SECONDS = 3.0
# mpirun may take this long to end when all ranks have ended by themselves.
IDLE_SECONDS = 10.0
# The time from a second signal until mpirun is killed.
HURRY_SECONDS = 1.0


class Phase(enum.Enum):
    """A phase of a job: see the table above."""

    RUNNING = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    LEAVING = enum.auto()


class Termination:
    """The phase of a job, and the deadlines of its end; times are those of time.monotonic()."""

    def __init__(self, keepers: Keepers, mpirun: MpirunProcess, record: JobRecord, grace: float) -> None:
        self._keepers, self._mpirun, self._record = keepers, mpirun, record
        self._grace = grace
        self.phase = Phase.RUNNING
        self.reason: EndReason | None = None
        """The reason for the end, from ENDING on."""
        self.since = float("inf")
        """The time at which the job began to end."""
        self._ranks_kill_at = self._mpirun_term_at = self._mpirun_kill_at = float("inf")

    @property
    def ending(self) -> bool:
        """Whether the job is being ended."""
        return self.reason is not None

    def begin(self, reason: EndReason) -> None:
        """End all ranks within the grace; only the first reason counts."""
        if self.ending:
            return
        self.reason = reason
        self.phase = Phase.ENDING
        self.since = time.monotonic()
        self._ranks_kill_at = self.since + self._grace + SLACK_SECONDS
        self._keepers.send_all(protocol.TERMINATE, str(self._grace))
        if not any(peer.rank is not None for peer in self._keepers.peers.values()):
            self._mpirun.terminate()  # no rank has started

    def hurry(self) -> None:
        """Kill all ranks now, and mpirun soon."""
        self._keepers.send_all(protocol.TERMINATE, "0")
        self._ranks_kill_at = time.monotonic() + HURRY_SECONDS

    def overdue(self, now: float) -> bool:
        """Return True if keepers that are still connected will not be waited for any longer."""
        return self.ending and now > self._ranks_kill_at + LOST_SECONDS

    def advance(self, now: float, *, all_gone: bool) -> None:
        """Go on to the next phase if its time has come, and send mpirun the signals that are due.

        Args:
            now: The time.
            all_gone: Whether all ranks have ended and no keeper is connected.
        """
        if self.phase is Phase.RUNNING and all_gone:
            self._enter(Phase.IDLE, term_at=now + IDLE_SECONDS, kill_at=now + IDLE_SECONDS + SLACK_SECONDS)
        if self.phase is Phase.ENDING:
            if any(peer.running for peer in self._keepers.peers.values()):
                if now > self._ranks_kill_at:
                    self._mpirun.kill()
                return
            self._order_sweeps()
            self._keepers.send_all(protocol.LEAVE)
            seconds = LOST_SECONDS if self._record.lost_hosts else MPIRUN_SECONDS
            self._enter(Phase.LEAVING, term_at=now + seconds / 3, kill_at=now + seconds)
        if self.phase in (Phase.IDLE, Phase.LEAVING):
            self._mpirun.end(now, term_at=self._mpirun_term_at, kill_at=self._mpirun_kill_at)

    def _enter(self, phase: Phase, *, term_at: float, kill_at: float) -> None:
        self.phase = phase
        self._mpirun_term_at, self._mpirun_kill_at = term_at, kill_at

    def _order_sweeps(self) -> None:
        """On hosts where a keeper was killed, order another one to kill the children of its program."""
        for peer in self._keepers.peers.values():
            if peer.host in self._record.unswept and peer.rank is not None:
                self._keepers.send(peer, protocol.SWEEP)
                self._record.unswept.remove(peer.host)
