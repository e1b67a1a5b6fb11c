"""The event loop of a process: descriptors, deadlines, and other threads or signals that wake it up.

It has the only poll or epoll object of the product.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from resource import struct_rusage

READ, WRITE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT
ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
# The longest wait in seconds that is passed to the kernel, which counts milliseconds in 31 bits.
LONGEST = 3600.0
NEVER = float("inf")


class Loop:
    """Descriptors with their handlers, and deadlines with theirs.

    `wake_fd` wakes the loop up when something is written to it: pass it to signal.set_wakeup_fd, and take the signals,
    or reap children, after each `wait`.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._always: set[int] = set()
        """The regular files, which are always ready, and which epoll refuses."""
        self._deadlines: dict[Callable[[], float], Callable[[float], None]] = {}
        self._wake_at, self.wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_at, select.EPOLLIN, self._on_wake)

    def watch(self, fd: int, events: int, on_ready: Callable[[int], None]) -> None:
        """Call a function with the events of a descriptor, in place of an earlier one."""
        if fd not in self._handlers:
            try:
                self._epoll.register(fd, events)
            except PermissionError:
                self._always.add(fd)
        elif fd not in self._always:
            self._epoll.modify(fd, events)
        self._handlers[fd] = on_ready

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer, before it is closed. A second call does nothing."""
        if self._handlers.pop(fd, None) is None:
            return
        if fd in self._always:
            self._always.remove(fd)
        else:
            self._epoll.unregister(fd)

    def watch_deadline(self, deadline: Callable[[], float], on_due: Callable[[float], None]) -> None:
        """Call `on_due` with the time (time.monotonic) in each `wait` that ends after the time that `deadline` returns.

        That is read before and after each wait; it returns NEVER where there is none.
        """
        self._deadlines[deadline] = on_due

    def watch_loop(self, other: Loop) -> None:
        """Let `wait` also wait for the events and deadlines of another loop, and call their functions."""

        def advance(_events: int) -> None:
            other.wait(0)

        self.watch(other._epoll.fileno(), READ, advance)
        self.watch_deadline(lambda: min((deadline() for deadline in other._deadlines), default=NEVER), other._call_due)

    def forget_deadline(self, deadline: Callable[[], float]) -> None:
        """Watch a deadline no longer. A second call does nothing."""
        self._deadlines.pop(deadline, None)

    def wait(self, seconds: float = LONGEST) -> bool:
        """Wait for events or deadlines, and call their functions; return False if there were no events in that time.

        A descriptor that another function has forgotten or closed meanwhile has no events.
        """
        if self._always:
            seconds = 0
        elif self._deadlines:
            seconds = min(seconds, min(deadline() for deadline in self._deadlines) - time.monotonic())
        events = self._epoll.poll(LONGEST if seconds > LONGEST else max(seconds, 0))
        if len(events) == 1:
            self._handlers[events[0][0]](events[0][1])
        else:
            for fd, mask, on_ready in [(fd, mask, self._handlers[fd]) for fd, mask in events]:
                if self._handlers.get(fd) == on_ready:
                    on_ready(mask)
        if self._always:
            self._call_always()
        if self._deadlines:
            self._call_due(time.monotonic())
        return bool(events)

    def wake(self) -> None:
        """Let `wait` return. Any thread and signal handler may call it."""
        try:
            os.write(self.wake_fd, b"\0")
        except OSError:  # the loop is closed, or will return anyway
            return

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._epoll.closed

    def close(self) -> None:
        """Watch nothing any more. A second call does nothing."""
        if not self.closed:
            self._handlers.clear()
            self._always.clear()
            self._deadlines.clear()
            self._epoll.close()
            os.close(self._wake_at)
            wake_fd, self.wake_fd = self.wake_fd, -1
            os.close(wake_fd)

    def _call_always(self) -> None:
        for fd in tuple(self._always):
            if fd in self._always:
                self._handlers[fd](READ | WRITE)

    def _call_due(self, now: float) -> None:
        for deadline, on_due in tuple(self._deadlines.items()):
            if deadline() <= now and deadline in self._deadlines:
                on_due(now)

    def _on_wake(self, _events: int) -> None:
        try:
            os.read(self._wake_at, 1 << 16)
        except BlockingIOError:
            return


def reap_children() -> Iterator[tuple[int, int, struct_rusage]]:
    """Reap the children that have ended; yield their process ids, wait statuses and usage."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status, usage
