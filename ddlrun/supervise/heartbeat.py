"""Heartbeats: ddlrun's own to all keepers, and the detection of keepers that send none."""

from ddlrun.rank import protocol
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import Keepers

# Heartbeats per timeout: a few may be late.
BEATS = 8


class Heartbeat:
    """The times of ddlrun's heartbeats; in seconds, 0: none."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._interval = timeout / BEATS
        self._sent_at = now

    def deadline(self) -> float:
        """Return the time of the next heartbeat, infinity if there are none."""
        return self._sent_at + self._interval if self._timeout else float("inf")

    def beat(self, now: float, keepers: Keepers) -> list[KeeperConnection]:
        """Send a heartbeat to all keepers if it is due; drop and return the keepers that have been silent too long.

        Keepers that are not read now are not silent by their own fault, and stay.
        """
        if now < self.deadline():
            return []
        self._sent_at = now
        keepers.send_all(protocol.HEARTBEAT)
        keepers.drop_slow_strangers(now)
        return keepers.drop_silent(now - self._timeout + self._interval) if keepers.reading else []
