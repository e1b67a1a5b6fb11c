"""The readers of ddlrun's standard output and standard error, which may go away while no rank prints."""

import os
import select
import signal
import stat
import time
from collections.abc import Collection

from ddlrun.supervise.cause import EndCause, EndReason

STREAMS = (1, 2)
# A job may end by itself at about the time at which its readers do.
PATIENCE = 5.0


class Readers:
    """The programs behind pipes and sockets, such as a pager or the sshd of a session."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._gone: set[int] = set()
        self._all_gone_at = float("inf")
        # The events that epoll reports, beside EPOLLERR and EPOLLHUP, which it always does.
        self._events = {fd: 0 for fd in STREAMS if _has_reader(fd)}
        for fd in self._events:
            epoll.register(fd, 0)

    def await_room(self, full: Collection[int]) -> None:
        """Let epoll report when the streams in `full` take more output."""
        for fd, before in self._events.items():
            wanted = select.EPOLLOUT if fd in full else 0
            if wanted != before:
                self._epoll.modify(fd, wanted)
                self._events[fd] = wanted

    def on_event(self, fd: int, event: int) -> bool:
        """Record an event of epoll; return False if it is not that of a stream."""
        if fd not in STREAMS:
            return False
        if not event & ~select.EPOLLOUT:
            return True
        self._epoll.unregister(fd)
        del self._events[fd]
        self._gone.add(fd)
        if self._gone.issuperset(STREAMS):
            self._all_gone_at = time.monotonic()
        return True

    def deadline(self) -> float:
        """Return the time from which on `all_gone` returns a reason."""
        return self._all_gone_at + PATIENCE

    def all_gone(self, now: float) -> EndReason | None:
        """Return the reason to end the job if both streams have lost their readers: a session has ended.

        A lost reader of one stream, as after `| head`, matters only at the next write to it.
        """
        if now >= self.deadline():
            return EndCause.ENDED_SESSION.reason(signal=signal.SIGPIPE)
        return None


def _has_reader(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
