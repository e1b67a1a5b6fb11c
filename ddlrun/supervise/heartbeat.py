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
        return self._sent_at + self._interval if self._timeout else float("inf")

    def beat(self, now: float, keepers: Keepers) -> list[SilentKeeper]:
        """Drop and return the keepers that have been silent too long, and send a heartbeat to the others, if it is due.

        Keepers that are paused are not silent by their own fault, and stay; nor are they within the timeout after a
        time in which this process did not run.
        Hosts have had an interval to acknowledge the heartbeat before.
        """
        if now < self.deadline():
            return []
        judged = self.explain_pause(now) is None
        self._sent_at = now
        silent = keepers.drop_silent(now - self._timeout + self._interval) if judged else []
        keepers.send_all(protocol.HEARTBEAT)
        return silent
