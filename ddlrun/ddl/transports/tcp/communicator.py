"""A group of ranks over TCP, with the few methods of mpi4py's communicators that this package uses."""

from __future__ import annotations

import hashlib
import pickle
import struct
from typing import TYPE_CHECKING, Any, Generic

from ddlrun.ddl.schedules.partition import binomial_tree
from ddlrun.ddl.transports.communicators import LANE, PATIENCE, Owner, report_wait
from ddlrun.ddl.transports.tcp.message import Completion
from ddlrun.ddl.transports.tcp.protocol import seal, unseal
from ddlrun.errors import LostRankError
from ddlrun.wire.frames import FrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

# Bytes of the parts in which a broadcast travels: a rank passes one on while it receives the next.
PART = 1 << 20
TAGS = 1 << 31


class Messages:
    """Messages that are waited for together."""

    def __init__(self, comm: TcpCommunicator) -> None:
        self._comm, self._complete, self.open = comm, list[Any](), 0

    def send(self, data: Any, peer: int, tag: int) -> None:  # noqa: ANN401 - an object with the buffer protocol
        """Begin to send bytes."""
        view = memoryview(data).cast("B")
        self._comm.endpoint.post_send(self._comm.ranks[peer], self._comm.group, tag, view, self._completion())

    def receive(self, buffer: Any, peer: int, tag: int) -> None:  # noqa: ANN401 - an object with the buffer protocol
        """Begin to receive bytes."""
        completion = self._completion(memoryview(buffer).cast("B"))
        self._comm.endpoint.post_receive(self._comm.ranks[peer], self._comm.group, tag, completion)

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Move messages without waiting; return True if all are complete."""
        if self.open:
            self._comm.endpoint.poll(0)
        return not self.open

    def Wait(self) -> None:  # noqa: N802
        """Return when all messages are complete."""
        while self.open:
            self._comm.wait()

    def _completion(self, buffer: memoryview | None = None) -> Completion:
        return Completion(self, self._complete, buffer)


class Inbox:
    """A message of unknown length."""

    def __init__(self) -> None:
        self.open, self.data = 0, memoryview(b"")


class TcpCommunicator:
    """The group of `ranks` of a job, in this order. All of them create it together.

    `group` is a number that the ranks of the group have in common, and no other group that any of them is in.
    """

    def __init__(self, endpoint: Endpoint, ranks: Sequence[int], group: int) -> None:
        self.endpoint, self.ranks, self.group = endpoint, tuple(ranks), group
        self.rank, self.size = self.ranks.index(endpoint.rank), len(self.ranks)
        self._derived = self._calls = 0

    library, collectives = "TCP", None

    @property
    def job_size(self) -> int:
        """The number of ranks of the job."""
        return self.endpoint.size

    @property
    def ended(self) -> bool:
        """True once the endpoint is closed."""
        return self.endpoint.closed

    def make_transport(self) -> TcpTransport[Chunk]:
        """Return a transport over a duplicate."""
        return TcpTransport(self.Dup())

    def take_maxima(self, values: NDArray[Any]) -> None:
        """Replace each number by the largest one of all ranks."""
        values[:] = [max(column) for column in zip(*self.allgather(values.tolist()), strict=True)]

    def abandon(self, error: LostRankError) -> None:
        """Close the connections of this rank, so that the others report it as lost; its calls then raise this error."""
        self.endpoint.abandon(error)

    def Dup(self) -> TcpCommunicator:  # noqa: N802 - mpi4py's name, as those below
        """Return a communicator of the same ranks with messages of its own."""
        return self._derive(self.ranks, 0)

    def Split(self, color: int, key: int = 0) -> TcpCommunicator:  # noqa: N802
        """Return the communicator of the ranks with the same color, ordered by key, then by rank."""
        rows = self.allgather((color, key))
        members = sorted((key, rank) for rank, (other, key) in enumerate(rows) if other == color)
        return self._derive([self.ranks[rank] for _, rank in members], color)

    def split_hosts(self) -> TcpCommunicator:
        """Return the communicator of the ranks on this host."""
        hosts = [self.endpoint.address_of(rank).host for rank in self.ranks]
        mine = hosts[self.rank]
        members = [rank for rank, host in zip(self.ranks, hosts, strict=True) if host == mine]
        return self._derive(members, hosts.index(mine))

    def Free(self) -> None:  # noqa: N802
        """Do nothing: a communicator holds nothing of the system's."""

    def gather(self, item: Any, root: int = 0) -> list[Any] | None:  # noqa: ANN401
        """Return the items of all ranks on the rank `root`, None elsewhere: by a binomial tree."""
        tag, items = self._next_tag(), {self.rank: item}
        parent, children = binomial_tree(self.rank, self.size, root)
        for child in reversed(children):
            items |= pickle.loads(self._receive(child, tag))  # noqa: S301 - the sender is authenticated
        if parent is not None:
            self._send(pickle.dumps(items), [parent], tag)
            return None
        return [items[rank] for rank in range(self.size)]

    def bcast(self, item: Any, root: int = 0) -> Any:  # noqa: ANN401
        """Return the item of the rank `root`: by a binomial tree."""
        tag = self._next_tag()
        parent, children = binomial_tree(self.rank, self.size, root)
        data = pickle.dumps(item) if parent is None else self._receive(parent, tag)
        self._send(data, children, tag)
        return item if parent is None else pickle.loads(data)  # noqa: S301 - the sender is authenticated

    def allgather(self, item: Any) -> list[Any]:  # noqa: ANN401
        """Return the items of all ranks, in rank order."""
        items: list[Any] = self.bcast(self.gather(item))
        return items

    def Barrier(self) -> None:  # noqa: N802
        """Return when all ranks have called it."""
        self.allgather(None)

    def Bcast(self, buffer: Any, root: int = 0) -> None:  # noqa: ANN401, N802
        """Fill a buffer, which has the same length on all ranks, with that of the rank `root`."""
        tag, view = self._next_tag(), memoryview(buffer).cast("B")
        parent, children = binomial_tree(self.rank, self.size, root)
        parts = [view[at : at + PART] for at in range(0, len(view), PART)]
        arrivals, departures = [Messages(self) for _ in parts], Messages(self)
        for part, arrival in zip(parts, arrivals, strict=True):
            if parent is not None:
                arrival.receive(part, parent, tag)
        for part, arrival in zip(parts, arrivals, strict=True):
            arrival.Wait()
            for child in children:
                departures.send(part, child, tag)
        departures.Wait()

    def Iallgather(self, mine: Any, rows: Any) -> Messages:  # noqa: ANN401, N802
        """Begin to fill row r of the array `rows` with rank r's `mine`, by messages between all pairs of ranks."""
        tag, messages = self._next_tag(), Messages(self)
        rows[self.rank] = mine
        for peer in range(self.size):
            if peer != self.rank:
                messages.receive(rows[peer], peer, tag)
                messages.send(rows[self.rank], peer, tag)
        return messages

    def wait(self) -> None:
        """Move messages until something has happened. Reports a wait of a minute."""
        if not self.endpoint.poll(PATIENCE):
            report_wait(self.endpoint.rank, self.endpoint.awaited())
            while not self.endpoint.poll(PATIENCE):
                pass

    def _send(self, data: bytes | memoryview, peers: Sequence[int], tag: int) -> None:
        messages = Messages(self)
        for peer in peers:
            messages.send(seal(data), peer, tag)
        messages.Wait()

    def _receive(self, peer: int, tag: int) -> bytes | memoryview:
        inbox = Inbox()
        self.endpoint.post_receive(self.ranks[peer], self.group, tag, Completion(inbox, []))
        while inbox.open:
            self.wait()
        try:
            return unseal(inbox.data)
        except FrameError as error:
            job = self.endpoint.job
            lost = LostRankError(f"{job}: rank {job.number(self.ranks[peer])} is lost: {error}")
            self.endpoint.stop(lost)
            raise lost from error

    def _next_tag(self) -> int:
        self._calls += 1
        return self._calls % TAGS

    def _derive(self, ranks: Sequence[int], color: int) -> TcpCommunicator:
        self._derived += 1
        text = struct.pack("<QQq", self.group, self._derived, color)
        group = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        return TcpCommunicator(self.endpoint, ranks, group)


class TcpTransport(Generic[Owner]):
    """The transport over the messages of a communicator, which must be used for nothing else."""

    def __init__(self, comm: TcpCommunicator) -> None:
        self._endpoint, self._ranks, self._group = comm.endpoint, comm.ranks, comm.group
        self.complete: list[Owner] = []
        """The owners that have no open messages any more."""

    def post_send(self, data: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to send bytes; see `Transport`."""
        completion = Completion(owner, self.complete)
        self._endpoint.post_send(self._ranks[peer], self._group, tag, data, completion, tag // LANE)

    def post_receive(self, buffer: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to receive bytes; see `Transport`."""
        self._endpoint.post_receive(self._ranks[peer], self._group, tag, Completion(owner, self.complete, buffer))

    def wait_some(self, seconds: float) -> list[Owner]:
        """Return the owners that have no open messages any more; the rank sleeps in the kernel until there is one."""
        moved = True
        while moved and not self.complete:
            moved = self._endpoint.poll(seconds) and seconds > 0
        return self.take_complete()

    def take_complete(self) -> list[Owner]:
        """Return the owners that have no open messages any more, without a call of the kernel."""
        complete = self.complete[:]
        self.complete.clear()  # completions hold this very list
        return complete

    def close(self) -> None:
        """Do nothing: the endpoint stays."""
