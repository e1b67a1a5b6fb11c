"""The interface of what a keeper does beside its states."""

from __future__ import annotations

import os

from ddlrun.wire.loop import NEVER, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.wire.loop import Loop


class Task:
    """Work that waits for a descriptor, a time, or both. A loop drives it from `join` to `leave`."""

    fd = -1
    """The descriptor; -1: there is none."""
    events = READ
    """The events of the descriptor that the task waits for."""
    loop: Loop | None = None
    """The loop, while it drives the task."""

    def deadline(self) -> float:
        """Return the time (time.monotonic) at which something has to be done without an event."""
        return NEVER

    def on_ready(self, events: int) -> None:
        """React to the descriptor."""

    def on_time(self, now: float) -> None:
        """Do what is due."""

    def join(self, loop: Loop) -> None:
        """Begin, or go on, in a loop."""
        self.loop = loop
        if self.fd >= 0:
            loop.watch(self.fd, self.events, self.on_ready)
        if type(self).deadline is not Task.deadline:
            loop.watch_deadline(self.deadline, self.on_time)

    def leave(self) -> None:
        """End, before the descriptor is closed. A second call does nothing."""
        if self.loop is not None:
            self.loop.forget(self.fd)
            self.loop.forget_deadline(self.deadline)
            self.loop = None

    def close(self) -> None:
        """End, and close the descriptor. A second call does nothing."""
        self.leave()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
