"""The standard errors of what an agent starts."""

from __future__ import annotations

import os

from ddlrun.wire.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.wire.loop import Loop

# What a pipe holds at most.
CHUNK = 1 << 16
# The bytes that are kept.
MOST_KEPT = 4096


class ErrorPipe:
    """The pipe to which a client, or the keepers of a job, write errors: they are kept at first, or passed on."""

    def __init__(self, loop: Loop, fd: int) -> None:
        """Take over the read end of a pipe."""
        self._loop, self._fd = loop, fd
        self._pass_on = False
        self.last = b""
        """The last of what is kept."""
        os.set_blocking(fd, False)
        loop.watch(fd, READ, lambda _events: self.read())

    def pass_on(self, *, login: bool) -> None:
        """Pass on what is written from now on, and perhaps what a login has written."""
        if login:
            _print(self.last)
        self._pass_on, self.last = True, b""

    def read(self) -> None:
        """Read once, all that a pipe holds."""
        try:
            data = os.read(self._fd, CHUNK) if self._fd >= 0 else b""
        except BlockingIOError:
            return
        if not data:
            self.close()
        elif self._pass_on:
            _print(data)
        else:
            self.last = (self.last + data)[-MOST_KEPT:]

    def close(self) -> None:
        """Close the pipe. A second call does nothing."""
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def _print(data: bytes) -> None:
    try:
        os.write(2, data)
    except OSError:  # the link has ended
        return
