"""The interface between the engine and the network, which MPI and TCP implement."""

from __future__ import annotations

import sys
from typing import Protocol, TypeVar

# A lane is one of the connections to a peer. Tags from n * LANE on belong to lane n. MPI has lane 0 only: its tags may
# end here.
LANE = 1 << 15


class WrongLengthError(RuntimeError):
    """A message differs in length from the buffer posted for it."""


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
