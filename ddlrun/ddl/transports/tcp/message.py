"""Messages of a peer: what to do once one is complete, and those that arrive before a buffer is posted for them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ddlrun.ddl.transports.communicators import WrongLengthError

if TYPE_CHECKING:
    from ddlrun.ddl.transports.tcp.protocol import Loan

Key = tuple[int, int]
T = TypeVar("T")


class Completion:
    """What to do once a message is complete: count it in `owner.open`, and add the owner to `complete` after the last.

    buffer: where a received message goes; None: new memory, which is then `owner.data`.
    """

    __slots__ = ("buffer", "complete", "owner")

    def __init__(self, owner: Any, complete: list[Any], buffer: memoryview | None = None) -> None:  # noqa: ANN401
        self.owner, self.complete, self.buffer = owner, complete, buffer

    def finish(self) -> None:
        """Count the message as complete."""
        self.owner.open -= 1
        if not self.owner.open:
            self.complete.append(self.owner)


class Incoming:
    """A message that is arriving. Without a completion nobody has posted a buffer for it yet.

    view: the posted buffer, or new memory while there is none.
    """

    __slots__ = ("at", "completion", "is_posted", "view")

    def __init__(self, completion: Completion | None, size: int) -> None:
        self.completion, self.at = completion, 0
        posted = completion.buffer if completion is not None else None
        self.is_posted = posted is not None
        # bytearray would fill the memory with zeros first.
        self.view = np.empty(size, np.uint8).data if posted is None else posted

    @property
    def arrived(self) -> bool:
        """True if all bytes are here."""
        return self.at == len(self.view)

    def deliver(self, completion: Completion) -> None:
        """Hand the bytes over, all of which are here, and not in a posted buffer."""
        if completion.buffer is None:
            completion.owner.data = self.view
        else:
            completion.buffer[:] = self.view

    def post(self, completion: Completion) -> None:
        """Receive the rest of the bytes in a buffer that is posted while they arrive."""
        self.completion = completion
        if completion.buffer is not None:
            completion.buffer[: self.at] = self.view[: self.at]
            self.view, self.is_posted = completion.buffer, True


class Mailbox:
    """The posted buffers for messages of a peer, and its messages without one, by group and tag, the oldest first."""

    def __init__(self, peer: int) -> None:
        """Take the number of the peer in the job."""
        self._peer = peer
        self.posted: defaultdict[Key, deque[Completion]] = defaultdict(deque)
        self.early: defaultdict[Key, deque[Incoming | Loan]] = defaultdict(deque)

    def begin(self, key: Key, size: int) -> Incoming:
        """Return a message of a group and tag that arrives from now on. Raises WrongLengthError."""
        completion = take_next(self.posted, key)
        incoming = Incoming(completion, size)
        if completion is None:
            self.early[key].append(incoming)
        elif len(incoming.view) != size:
            self.check_length(size, completion)
        return incoming

    def check_length(self, size: int, completion: Completion) -> None:
        """Raise WrongLengthError if a message differs in length from its buffer."""
        if completion.buffer is not None and len(completion.buffer) != size:
            text = f"a message of rank {self._peer} has {size} bytes instead of {len(completion.buffer)}"
            raise WrongLengthError(text, self._peer)


def take_next(queues: defaultdict[Key, deque[T]], key: Key) -> T | None:
    """Take the oldest one of a group and tag; None: there is none. No empty queue remains."""
    queue = queues.get(key)
    if queue is None:
        return None
    item = queue.popleft()
    if not queue:
        del queues[key]
    return item
