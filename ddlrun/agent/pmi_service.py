"""The PMI server of a host and the root's part of it, and the addresses of the messages between them."""

from __future__ import annotations

from ddlrun.agent.frames import pack_words, unpack_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddlrun.agent.job import HostRanks, Job
    from ddlrun.agent.pmi import PmiRoot, PmiServer


class PmiService:
    """The PMI server of an agent's host; the root merges what the servers of all hosts have."""

    def __init__(self, own: HostRanks | None, hosts: Sequence[HostRanks], job: Job, *, root: bool) -> None:
        """Create the server of this host, without any connection.

        Args:
            own: This host; None if it has no ranks.
            hosts: The hosts whose agents are below this one, and this one.
            job: The job.
            root: Whether this is the root.
        """
        self._number = -1 if own is None else own.number
        self.server: PmiServer | None = None
        self._root: PmiRoot | None = None
        self._watched: set[int] = set()
        try:
            from ddlrun.agent.pmi import PmiRoot, PmiServer  # noqa: PLC0415
        except ImportError:
            return
        name = job.environ.get("DDLRUN_RUN") or "ddlrun"
        if own is not None:
            self.server = PmiServer(own.ranks, job.size, name)
        if root:
            self._root = PmiRoot([host.number for host in hosts])

    def update(self) -> tuple[set[int], set[int]]:
        """Return the connections that were opened and closed since the last call."""
        readable = set(self.server.readable()) if self.server is not None else set()
        opened, closed = readable - self._watched, self._watched - readable
        self._watched = readable
        return opened, closed

    def read(self, fd: int) -> Iterator[bytes]:
        """Read from a connection; yield messages to the root."""
        if self.server is not None:
            self.server.on_readable(fd)
            for message in self.server.take_messages():
                yield pack_words([b"%d" % self._number, message])

    def merge(self, message: bytes) -> Iterator[bytes]:
        """Give a message of a server to the root; yield its messages to servers."""
        number, text = unpack_words(message)
        if self._root is not None:
            for host, reply in self._root.on_message(int(number), text):
                yield pack_words([b"%d" % host, reply])

    def deliver(self, message: bytes) -> bool:
        """Give a message of the root to this host's server; return False if it is for another host."""
        number, text = unpack_words(message)
        if self.server is None or int(number) != self._number:
            return False
        self.server.on_message(text)
        return True
