"""The time limits of a job: in total, of the start of its ranks, of silence, and of keepers that send no heartbeat."""

import time
from collections.abc import Mapping

from ddlrun.hangs.stall import StallDetector
from ddlrun.hosts import by_number, fold
from ddlrun.keeper import protocol
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.supervise.cause import EndCause, EndReason
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import Keepers
from ddlrun.supervise.ranks import Ranks
from ddlrun.wire.loop import NEVER

# After this long, a rank that has ended while others run is worth a message.
EARLY_SECONDS = 30.0
# Heartbeats per timeout: a few may be late.
BEATS = 8
STARVED = "the network loses packets"


def explain_silence(silent: Mapping[KeeperConnection, bool], seconds: float) -> EndReason:
    """Return the reason to end a job: the hosts of silent keepers, of those out of reach if there are any."""
    unreachable = {peer.host for peer, is_reachable in silent.items() if not is_reachable}
    hosts = ", ".join(sorted(unreachable or {peer.host for peer in silent}, key=by_number))
    return (EndCause.SILENT_HOST if unreachable else EndCause.SILENT_KEEPER).reason(hosts=hosts, seconds=seconds)


class Heartbeat:
    """The times of ddlrun's heartbeats; in seconds, 0: none."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._interval = timeout / BEATS
        self._sent_at = now
        self._pause, self._paused_until = 0.0, float("-inf")
        """The last time in which this process did not run although a heartbeat was due."""

    def explain_pause(self, now: float) -> str | None:
        """Return a text if this process did not run for a while until just now, None otherwise."""
        pause = now - self.deadline()
        if pause > self._timeout / 2:
            self._pause, self._paused_until = pause, now
        if now >= self._paused_until + self._timeout:
            return None
        return f"ddlrun did not run for {self._pause:.0f} s (it was stopped, or this host is too busy)"

    def explain_farewell(self, farewell: str, now: float) -> str:
        """Return a keeper's reason for closing its connection, with the cause."""
        return f"{farewell}: {self.explain_pause(now) or STARVED}"

    def deadline(self) -> float:
        """Return the time of the next heartbeat, infinity if there are none."""
        return self._sent_at + self._interval if self._timeout else NEVER

    def beat(self, now: float, keepers: Keepers) -> dict[KeeperConnection, bool]:
        """Drop the keepers that have been silent too long, and send a heartbeat to the others, if it is due.

        Keepers that are paused are not silent by their own fault, and stay; nor are they within the timeout after a
        time in which this process did not run.
        Hosts have had an interval to acknowledge the heartbeat before.
        """
        if now < self.deadline():
            return {}
        judged = self.explain_pause(now) is None
        self._sent_at = now
        silent = keepers.drop_silent(now - self._timeout + self._interval) if judged else {}
        keepers.send_all(protocol.HEARTBEAT)
        return silent


class JobLimits:
    """A job's limits from its start on; times are those of time.monotonic()."""

    def __init__(self, options: SupervisionOptions, ranks: Ranks, session: int) -> None:
        """Start the clock of a job that runs in the process manager's session."""
        self._options, self.ranks, self._session = options, ranks, session
        self.started_at = self.last_output = time.monotonic()
        """The time of the start, and that at which a rank last wrote something."""
        self.heartbeat = Heartbeat(options.heartbeat, self.started_at)
        self.stalls = StallDetector(options.stall)
        self._last_start = self.started_at
        self._last_end = NEVER

    @property
    def pause(self) -> str | None:
        """Why ddlrun itself may have lost ranks and the process manager just now: it did not run."""
        return self.heartbeat.explain_pause(time.monotonic())

    def start(self, rank: int, since: float, now: float) -> None:
        """Record the start of a rank, which connected at a time."""
        self.stalls.start(rank, since)
        self._last_start = now

    def add_output(self, rank: int, now: float) -> None:
        """Record output of a rank."""
        self.last_output = now
        self.stalls.add_output(rank, now)

    def end(self, rank: int, *, lost: bool = False) -> None:
        """Record the end of a rank."""
        self.stalls.end(rank)
        if not lost:
            self._last_end = time.monotonic()

    # -- silence -------------------------------------------------------------------------------------

    def find_silent(self, now: float, *, waited: bool) -> set[int]:
        """Return the ranks that have become silent, once; none while they may have waited for ddlrun."""
        if waited or self.pause is not None:
            self.last_output = now
        return self.stalls.find_new(now, self.last_output)

    # -- the job as a whole ----------------------------------------------------------------------------

    def deadline(self) -> float:
        """Return the time of the next limit."""
        timeout = self.started_at + self._options.timeout if self._options.timeout else NEVER
        return min(timeout, self._last_start + self._options.start) if self._options.start else timeout

    def exceeded(self, now: float) -> EndReason | None:
        """Return the reason to end the job if a limit is exceeded: the job's own, or that for its ranks' start."""
        if self._options.timeout and now > self.started_at + self._options.timeout:
            return EndCause.TIME_LIMIT.reason(seconds=self._options.timeout)
        if not self._options.start or now <= self._last_start + self._options.start:
            return None
        if self.ranks.complete:
            self._last_start = NEVER
            return None
        ranks, daemons = self.ranks.job.describe(self.ranks.missing), self._explain_late_start()
        return EndCause.LATE_START.reason(ranks=ranks, seconds=self._options.start, daemons=daemons)

    def _explain_late_start(self) -> str:
        """Return the hosts whose daemons are waited for before any rank starts, in words; empty if unknown."""
        job = self.ranks.job
        hosts = [] if self.ranks.any_started else job.manager.find_missing_daemons(self._session, job.host_names)
        return f": no daemon on {fold(hosts)} has connected to {job.manager.name}" if hosts else ""

    def early_ends(self, now: float) -> str | None:
        """Return a message, once, if some ranks have ended a while ago and others have not."""
        if now <= self._last_end + EARLY_SECONDS:
            return None
        self._last_end = NEVER
        job, ended = self.ranks.job, self.ranks.ends
        if self.ranks.ended:
            return None
        return f"{job.describe(ended)} ended with 0; {job.ranks - len(ended)} of {job.ranks} ranks still run"
