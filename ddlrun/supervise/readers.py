"""The readers of ddlrun's standard output and standard error, which may go away while no rank prints."""

import os
import select
import signal
import stat
import time

from ddlrun.supervise.root_cause import EndReason

STREAMS = (1, 2)
# A job may end by itself at about the time at which its readers do.
PATIENCE = 5.0


class Readers:
    """The programs behind pipes and sockets, such as a pager or the sshd of a session."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._gone: set[int] = set()
        self._all_gone_at = float("inf")
        for fd in STREAMS:
            if _has_reader(fd):
                epoll.register(fd, 0)  # for EPOLLERR and EPOLLHUP, which are always reported

    def lose(self, fd: int) -> bool:
        """Record an event of epoll; return False if it is not that of a stream."""
        if fd not in STREAMS:
            return False
        self._epoll.unregister(fd)
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
            code = 128 + signal.SIGPIPE
            return EndReason(code, "output is no longer read: the session has ended", signal.SIGPIPE, requested=True)
        return None


def _has_reader(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
