"""SIGTERM and SIGKILL for a rank's processes, each at its time."""

from __future__ import annotations

import time

from ddlrun.rank.bare_signal import signal
from ddlrun.rank.processes import find_signal_targets, list_descendants, send_signal

# What the program leaves behind may run on for this long, and for as long again after a SIGTERM.
STRAY_SECONDS = 1.0
KILL_INTERVAL = 0.2


class Escalation:
    """The deadlines of the keeper's descendants; times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._term_at = self._kill_at = float("inf")
        self._terminated: list[int] = []
        self.last_order = 0.0
        """The latest time until which an order allows processes to live."""

    def terminate(self, pid: int) -> None:
        """Send SIGTERM to the program; stopped processes are continued."""
        self._terminated = find_signal_targets(pid, signal.SIGTERM)
        for target in self._terminated:
            send_signal(target, signal.SIGTERM)
            send_signal(target, signal.SIGCONT)

    def kill_by(self, when: float) -> None:
        """Set the time of SIGKILL; a later order can only bring it forward."""
        self._kill_at = self.last_order = min(self._kill_at, when)

    def clear_strays(self, now: float, *, ordered: bool) -> None:
        """Set the deadlines of what the program left behind when it ended.

        After an order, processes that a shell started have the rest of the grace.
        """
        if ordered:
            self._term_at = now
        else:
            self._term_at = now + STRAY_SECONDS
            self._kill_at = now + 2 * STRAY_SECONDS

    def stop(self) -> None:
        """Send no more signals, unless a new order comes."""
        self._term_at = self._kill_at = float("inf")
        self.last_order = time.monotonic()

    def deadline(self) -> float:
        """Return the time of the next signal, infinity if none is due."""
        return min(self._term_at, self._kill_at)

    def signal_due(self, now: float) -> None:
        """Send the signals whose time has come to all descendants; SIGKILL is repeated while any live."""
        if now >= self._term_at:
            self._term_at = float("inf")
            for pid in list_descendants():
                if pid not in self._terminated:
                    send_signal(pid, signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = now + KILL_INTERVAL
            for pid in list_descendants():
                send_signal(pid, signal.SIGKILL)
