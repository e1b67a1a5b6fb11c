"""The interface of a communicator, which MPI, TCP and a single rank implement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from numpy.typing import NDArray

    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.errors import LostRankError

# A lane is one of the connections to a peer. Tags from n * LANE on belong to lane n. MPI has lane 0 only: its tags may
# end here.
LANE = 1 << 15


# Seconds without a message after which a rank reports the ranks that it waits for.
PATIENCE = 60.0


def report_wait(rank: int, peers: Iterable[int]) -> None:
    """Report the ranks whose messages a rank has waited for.

    One of them may have made a call less than this one, and wait in MPI's finalization.
    """
    ranks = ", ".join(map(str, sorted(peers))) or "others"
    text = f"rank {rank} has waited {PATIENCE:.0f} s for a message of rank {ranks}"
    sys.stderr.write(f"ddlrun.ddl: {text}; do all ranks make the same calls?\n")


class WrongLengthError(RuntimeError):
    """A message differs in length from the buffer posted for it."""

    def __init__(self, text: str, peer: int | None = None) -> None:
        """Take the text, and the number of the sender in the job if it is known."""
        super().__init__(text, peer)
        self.peer = peer

    def __str__(self) -> str:
        """Return the text."""
        return str(self.args[0])


def message_errors() -> tuple[type[Exception], ...]:
    """Return the types of the errors that messages raise: that of a wrong length over TCP, and MPI's."""
    mpi = sys.modules.get("mpi4py.MPI")
    return (WrongLengthError,) if mpi is None else (WrongLengthError, mpi.Exception)


class MessageOwner(Protocol):
    """An object that posts messages. `open` is the number of its messages that are not complete."""

    open: int


Owner = TypeVar("Owner", bound=MessageOwner)


class Transport(Protocol[Owner]):
    """Point-to-point messages between the ranks of a group, without blocking.

    Messages with the same peer and tag arrive in the order in which they were posted. A buffer must stay as it is until
    its message is complete.
    """

    def post_send(self, data: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to send bytes to the rank `peer`, and count the message in `owner.open`."""

    def post_receive(self, buffer: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to receive bytes from the rank `peer` in `buffer`, and count the message in `owner.open`."""

    def wait_some(self, seconds: float) -> list[Owner]:
        """Return the owners that have no open messages any more; wait up to `seconds` for the first.

        Raises:
            LostRankError: Over TCP, a rank that a message is awaited from has ended.
            RuntimeError: A message differs in length from its buffer (over TCP, WrongLengthError), or MPI reports an
                error.
        """

    def close(self) -> None:
        """Free what the transport has created. No message is open. All ranks call it together."""


class Exchange(Protocol):
    """A collective in progress."""

    def Test(self) -> bool:  # noqa: N802 - mpi4py's names, here and below
        """Return True if it is complete, without waiting."""

    def Wait(self) -> object:  # noqa: N802
        """Return when it is complete."""


class Communicator(Protocol):
    """A group of ranks, with the methods of mpi4py's communicators that this package uses.

    All ranks call these methods together, except `abandon`, and take the same item or buffer lengths.
    """

    @property
    def rank(self) -> int:
        """The number of this rank in the group, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks in the group."""

    @property
    def job_size(self) -> int:
        """The number of ranks of the job, of which the group may be a part."""

    @property
    def library(self) -> str:
        """The name of the library that carries the messages."""

    @property
    def collectives(self) -> ModuleType | None:
        """The module with the library's own collectives; None: all messages are ours, and each costs CPU time."""

    @property
    def ended(self) -> bool:
        """True if no message can be sent any more, because the process ends."""

    def make_transport(self) -> Transport[Chunk]:
        """Return a transport over a duplicate."""

    def split_hosts(self) -> Communicator:
        """Return the communicator of the ranks on this host, in rank order."""

    def take_maxima(self, values: NDArray[Any]) -> None:
        """Replace each number by the largest one of all ranks."""

    def abandon(self, error: LostRankError) -> None:
        """Close the connections of this rank, so that the others report it as lost; its calls then raise this error.

        Over MPI, do nothing: the others wait until this rank ends.
        """

    def Dup(self) -> Communicator:  # noqa: N802
        """Return a communicator of the same ranks with messages of its own."""

    def Split(self, color: int, key: int = 0, /) -> Communicator:  # noqa: N802
        """Return the communicator of the ranks with the same color, ordered by key, then by rank."""

    def Free(self) -> None:  # noqa: N802
        """Free what the library holds of the communicator."""

    def Barrier(self) -> None:  # noqa: N802
        """Return when all ranks have called it."""

    def Bcast(self, buffer: Any, /, root: int = 0) -> None:  # noqa: ANN401, N802
        """Fill a buffer with that of the rank `root`."""

    def Iallgather(self, mine: Any, rows: Any, /) -> Exchange:  # noqa: ANN401, N802
        """Begin to fill row r of the array `rows` with rank r's `mine`."""

    def gather(self, item: Any, /, root: int = 0) -> list[Any] | None:  # noqa: ANN401
        """Return the items of all ranks on the rank `root`, None elsewhere."""

    def bcast(self, item: Any, /, root: int = 0) -> Any:  # noqa: ANN401
        """Return the item of the rank `root`."""

    def allgather(self, item: Any, /) -> list[Any]:  # noqa: ANN401
        """Return the items of all ranks, in rank order."""


class SingleRank:
    """The communicator of a process that runs alone, and its transport: there are no messages."""

    rank, size, job_size, library, collectives, ended = 0, 1, 1, "none", None, False

    def make_transport(self) -> Transport[Chunk]:
        """Return a transport."""
        return self

    def split_hosts(self) -> SingleRank:
        """Return the communicator of this rank."""
        return self

    Dup = split_hosts

    def Split(self, _color: int, _key: int = 0) -> SingleRank:  # noqa: N802
        """Return the communicator of this rank."""
        return self

    def gather(self, item: Any, root: int = 0) -> list[Any]:  # noqa: ANN401, ARG002
        """Return the item of this rank."""
        return [item]

    allgather = gather

    def bcast(self, item: Any, root: int = 0) -> Any:  # noqa: ANN401, ARG002
        """Return the item."""
        return item

    def Iallgather(self, mine: Any, rows: Any) -> SingleRank:  # noqa: ANN401, N802
        """Fill the only row."""
        rows[0] = mine
        return self

    def Test(self) -> bool:  # noqa: N802
        """Return True: a collective of one rank is complete."""
        return True

    def wait_some(self, _seconds: float) -> list[Any]:
        """Return no owner of messages."""
        return []

    def _do_nothing(self, *_arguments: Any, **_names: Any) -> None:  # noqa: ANN401
        """Do nothing: no other rank takes part."""

    Barrier = Bcast = Free = Wait = abandon = close = post_receive = post_send = take_maxima = _do_nothing
