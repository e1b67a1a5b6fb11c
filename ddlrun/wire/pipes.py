"""Connections over two pipes, as programs such as ssh have them."""

from __future__ import annotations

import os

from ddlrun.wire.connection import Connection
from ddlrun.wire.loop import WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from ddlrun.wire.frames import Bytes
    from ddlrun.wire.loop import Loop
else:
    import _signal as signal  # signal takes 4 ms to import


class Pipes:
    """Two pipes, with the methods of a socket that a connection uses; -1: there is no such direction."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Take over the pipes."""
        self.read_fd, self.write_fd = read_fd, write_fd
        for fd in (read_fd, write_fd):
            if fd >= 0:
                os.set_inheritable(fd, False)

    def fileno(self) -> int:
        """Return the descriptor to read from."""
        return self.read_fd

    def setblocking(self, blocking: bool, /) -> None:  # noqa: FBT001 - as of a socket
        """Let calls wait or not."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.set_blocking(fd, blocking)

    def recv(self, most: int) -> bytes:
        """Read."""
        return os.read(self.read_fd, most)

    def recvmsg_into(self, buffers: Sequence[memoryview | bytearray]) -> tuple[int]:
        """Read into buffers, one after the other."""
        return (os.readv(self.read_fd, buffers),)

    def sendmsg(self, buffers: list[Bytes], _ancillary: object, _flags: int) -> int:
        """Write, without SIGPIPE, as MSG_NOSIGNAL does for sockets."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE,))
        try:
            return os.writev(self.write_fd, buffers)
        except BrokenPipeError:
            signal.sigtimedwait((signal.SIGPIPE,), 0)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def shutdown(self, _how: int) -> None:
        """Close the direction to the other end."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Close both directions."""
        self.shutdown(0)
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


class PipeConnection(Connection):
    """A connection over two pipes; -1: there is no such direction."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Take over the pipes."""
        self._pipes = Pipes(read_fd, write_fd)
        super().__init__(self._pipes)  # type: ignore[arg-type]

    def _watch(self, loop: Loop, events: int) -> None:
        if self._pipes.read_fd >= 0:
            loop.watch(self._pipes.read_fd, events & ~WRITE, self._on_events)
        if events & WRITE:
            loop.watch(self._pipes.write_fd, WRITE, self._on_events)
        else:
            loop.forget(self._pipes.write_fd)

    def _forget(self, loop: Loop) -> None:
        loop.forget(self._pipes.read_fd)
        loop.forget(self._pipes.write_fd)
