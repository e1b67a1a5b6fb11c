"""SIGTERM and SIGKILL for a rank's processes, each at its time."""

from __future__ import annotations

import os
import time

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.processes import find_signal_targets, list_descendants, send_signal
from ddlrun.keeper.task import Task
from ddlrun.wire.loop import NEVER

# What the program leaves behind may run on for this long, and for as long again after a SIGTERM.
STRAY_SECONDS = 1.0
KILL_INTERVAL = 0.2
# The runtime of a container has this long to end the container's processes itself.
REMOVAL_SECONDS = 30.0
# Processes that cannot be killed are waited for no longer than this.
UNKILLABLE_SECONDS = 10.0


class Escalation(Task):
    """The signals to the descendants of a keeper or a guard; times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._term_at = self._kill_at = NEVER
        self._terminated: list[int] = []
        self._remover = 0
        self._held_until = 0.0
        self._last_order = 0.0
        """The latest time until which an order allows processes to live."""

    def terminate(self, pid: int, *, hang_up: bool = False) -> None:
        """Send SIGTERM to the program; stopped processes are resumed. Interactive shells end at SIGHUP alone."""
        self._terminated = find_signal_targets(pid, signal.SIGTERM)
        for target in self._terminated:
            send_signal(target, signal.SIGTERM)
            send_signal(target, signal.SIGCONT)
        if hang_up:
            send_signal(pid, signal.SIGHUP)

    def kill_by(self, when: float) -> None:
        """Set the time of SIGKILL; a later order can only bring it forward."""
        self._kill_at = self._last_order = min(self._kill_at, when)

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
            self._held_until = self._last_order = time.monotonic() + REMOVAL_SECONDS

    def overdue(self, ended_at: float = 0.0) -> float:
        """Return the time from which processes that still live count as unkillable; `ended_at`: the program's end."""
        return max(ended_at, self._last_order) + UNKILLABLE_SECONDS

    def deadline(self) -> float:
        """Return the time of the next signal, infinity if none is due."""
        if self._remover:
            return self._held_until if os.path.exists(f"/proc/{self._remover}") else 0.0
        return min(self._term_at, self._kill_at)

    def on_time(self, now: float) -> None:
        """Send the signals whose time has come to all descendants; SIGKILL is repeated while any live."""
        if self._remover:
            self._remover = 0
            self._last_order = now
        if now >= self._term_at:
            self._term_at = NEVER
            for pid in list_descendants():
                if pid not in self._terminated:
                    send_signal(pid, signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = now + KILL_INTERVAL
            for pid in list_descendants():
                send_signal(pid, signal.SIGKILL)
