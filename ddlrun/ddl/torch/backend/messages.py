"""Messages between two members of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlrun.ddl.transports.tcp.communicator import Inbox, Messages
from ddlrun.ddl.transports.tcp.message import Completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes
    from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator


class MessageStarter:
    """Starts messages. Each function of it returns another one, which returns whether the message is complete."""

    def __init__(self, comm: TcpCommunicator) -> None:
        """Take a communicator that is used for nothing else."""
        self._comm = comm

    def send(self, memory: TensorBytes, peer: int, tag: int) -> Callable[[], bool]:
        """Send bytes to a member."""
        messages = Messages(self._comm)
        messages.send(memory.bytes, peer, tag)
        return lambda: not messages.open

    def receive(self, memory: TensorBytes, peer: int, tag: int) -> Callable[[], bool]:
        """Receive bytes from a member."""
        messages = Messages(self._comm)
        messages.receive(memory.bytes, peer, tag)
        return lambda: not messages.open

    def find_source(self, tag: int) -> int | None:
        """Return a member whose next message with a tag has begun to arrive; None: there is none."""
        sources = self._comm.endpoint.find_sources(self._comm.group, tag)
        return self._comm.ranks.index(sources[0]) if sources else None


class BlobExchange:
    """Copies bytes of every member to all of them. Their lengths differ, and only the sender knows them."""

    def __init__(self, comm: TcpCommunicator) -> None:
        """Take a communicator that is used for nothing else."""
        self._comm, self._calls = comm, 0

    def start(self, mine: bytes, blobs: dict[int, Any]) -> Callable[[], bool]:
        """Fill `blobs` with the bytes of all members; return a function that returns whether all are here."""
        comm, tag = self._comm, self._calls
        self._calls += 1
        sent, inboxes = Messages(comm), {peer: Inbox() for peer in range(comm.size) if peer != comm.rank}
        for peer, inbox in inboxes.items():
            comm.endpoint.post_receive(comm.ranks[peer], comm.group, tag, Completion(inbox, []))
            sent.send(mine, peer, tag)

        def is_complete() -> bool:
            if sent.open or any(inbox.open for inbox in inboxes.values()):
                return False
            blobs.update({comm.rank: mine, **{peer: inbox.data for peer, inbox in inboxes.items()}})
            return True

        return is_complete


class AnySource:
    """A message from the member whose message with a tag is here first."""

    def __init__(self, starter: MessageStarter, memory: TensorBytes, tag: int) -> None:
        self._starter, self._memory, self._tag = starter, memory, tag
        self._arrived: Callable[[], bool] | None = None
        self.source = -1
        """The member; -1 while it is not known."""

    def __call__(self) -> Callable[[], bool]:
        """Start to receive; return a function that returns whether the message is complete."""
        return self._is_complete

    def write_back(self) -> None:
        """Copy the bytes to the tensor."""
        self._memory.write_back()

    def _is_complete(self) -> bool:
        if self._arrived is None:
            source = self._starter.find_source(self._tag)
            if source is None:
                return False
            self.source = source
            self._arrived = self._starter.receive(self._memory, source, self._tag)
        return self._arrived()
