"""SIGTERM and SIGKILL for a rank's processes, each at its time."""

from __future__ import annotations

import os
import time

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.processes import find_signal_targets, list_descendants, send_signal

# What the program leaves behind may run on for this long, and for as long again after a SIGTERM.
STRAY_SECONDS = 1.0
KILL_INTERVAL = 0.2
# The runtime of a container has this long to end the container's processes itself.
REMOVAL_SECONDS = 30.0


class Escalation:
    """The deadlines of the keeper's descendants; times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._term_at = self._kill_at = float("inf")
        self._terminated: list[int] = []
        self._remover = 0
        self._held_until = 0.0
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

    def hold(self, remover: int) -> None:
        """Send no signals while a process (0: none) removes the container: killed, it would leave that behind."""
        if remover:
            self._remover = remover
            self._held_until = self.last_order = time.monotonic() + REMOVAL_SECONDS

    def _is_held(self, now: float) -> bool:
        if self._remover and (now >= self._held_until or not os.path.exists(f"/proc/{self._remover}")):
            self._remover = 0
            self.last_order = now
        return self._remover != 0

    def deadline(self) -> float:
        """Return the time of the next signal, infinity if none is due."""
        return self._held_until if self._remover else min(self._term_at, self._kill_at)

    def signal_due(self, now: float) -> None:
        """Send the signals whose time has come to all descendants; SIGKILL is repeated while any live."""
        if self._is_held(now):
            return
        if now >= self._term_at:
            self._term_at = float("inf")
            for pid in list_descendants():
                if pid not in self._terminated:
                    send_signal(pid, signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = now + KILL_INTERVAL
            for pid in list_descendants():
                send_signal(pid, signal.SIGKILL)
