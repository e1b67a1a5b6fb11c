"""Heartbeats: ddlrun's own to all keepers, and the detection of keepers that send none."""

from collections.abc import Sequence

from ddlrun.keeper import protocol
from ddlrun.supervise.cause import EndCause, EndReason
from ddlrun.supervise.keeper_connection import SilentKeeper
from ddlrun.supervise.keepers import Keepers

# Heartbeats per timeout: a few may be late.
BEATS = 8
STARVED = "the network loses packets"


def explain_silence(silent: Sequence[SilentKeeper], seconds: float) -> EndReason:
    """Return the reason to end a job: the hosts of silent keepers and the cause, first of those out of reach."""
    unreachable = [keeper for keeper in silent if not keeper.reachable]
    hosts = ", ".join(sorted({keeper.peer.host for keeper in unreachable or silent}))
    return (EndCause.SILENT_HOST if unreachable else EndCause.SILENT_KEEPER).reason(hosts=hosts, seconds=seconds)


class Heartbeat:
    """The times of ddlrun's heartbeats; in seconds, 0: none."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._interval = timeout / BEATS
        self._sent_at = now
        self.pause: str | None = None
        """The last time in which this process did not run although a heartbeat was due, if that was just now."""
        self._paused_until = float("-inf")

    def look_for_pause(self, now: float) -> None:
        """Set `pause` if this process did not run for a while until just now."""
        pause = now - self.deadline()
        if pause > self._timeout / 2:
            self.pause = f"ddlrun did not run for {pause:.0f} s (it was stopped, or this host is too busy)"
            self._paused_until = now
        elif now >= self._paused_until + self._timeout:
            self.pause = None

    def explain_farewell(self, farewell: str) -> str:
        """Return a keeper's reason for closing its connection, with the cause."""
        return f"{farewell}: {self.pause or STARVED}"

    def deadline(self) -> float:
        """Return the time of the next heartbeat, infinity if there are none."""
        return self._sent_at + self._interval if self._timeout else float("inf")

    def beat(self, now: float, keepers: Keepers) -> list[SilentKeeper]:
        """Drop and return the keepers that have been silent too long, and send a heartbeat to the others, if it is due.

        Keepers that are paused are not silent by their own fault, and stay; nor are they within the timeout after a
        time in which this process did not run.
        Hosts have had an interval to acknowledge the heartbeat before.
        """
        if now < self.deadline():
            return []
        self.look_for_pause(now)
        judged = self.pause is None
        self._sent_at = now
        silent = keepers.drop_silent(now - self._timeout + self._interval) if judged else []
        keepers.send_all(protocol.HEARTBEAT)
        keepers.drop_slow_unauthenticated(now)
        return silent
