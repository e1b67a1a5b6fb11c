"""The descriptors of an agent, each with the function that reads it."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.agent.frames import Channel


class Descriptors:
    """The descriptors that an agent waits for."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._blocked: dict[int, Channel] = {}
        """Write descriptor -> a connection with messages that wait to be sent."""

    def wait(self, seconds: float) -> None:
        """Wait for events, not longer than a time, and react to them."""
        for fd, event in self._epoll.poll(max(0.0, seconds)):
            if event & select.EPOLLOUT or fd in self._blocked:
                self._flush(fd)
            elif fd in self._readers:
                self._readers[fd]()

    def watch(self, fd: int, reader: Callable[[], None]) -> None:
        """Call a function whenever a descriptor is readable."""
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = reader

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer, before it is closed."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def send(self, channel: Channel, kind: bytes, text: bytes = b"") -> None:
        """Send a message as soon as the other end takes it."""
        channel.send(kind, text)
        self.watch_writes(channel)

    def watch_writes(self, channel: Channel) -> None:
        """Send what waits to be sent over a connection, as soon as the other end takes it."""
        if channel.unsent and channel.write_fd not in self._blocked:
            self._blocked[channel.write_fd] = channel
            self._epoll.register(channel.write_fd, select.EPOLLOUT)

    def close(self, channel: Channel) -> None:
        """Close a connection."""
        self.forget(channel.read_fd)
        self._blocked.pop(channel.write_fd, None)
        channel.close()

    def _flush(self, fd: int) -> None:
        channel = self._blocked[fd]
        channel.flush()
        if not channel.unsent:
            del self._blocked[fd]
            self._epoll.unregister(fd)
