"""Messages of a connection: what to do once one is complete, and those that arrive or wait in the peer's memory."""

from __future__ import annotations

import errno
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

CODE = struct.Struct("<I")


class AlteredBytesError(OSError):
    """Bytes are others than were sent."""


def seal(data: bytes | memoryview) -> bytes:
    """Return bytes and their CRC, by which the receiver notices that they were altered on the way."""
    return b"".join((data, CODE.pack(zlib.crc32(data))))


def unseal(data: bytes | memoryview) -> bytes | memoryview:
    """Return bytes without their CRC. Raises AlteredBytesError."""
    content = data[: -CODE.size]
    if zlib.crc32(content) != CODE.unpack_from(data, len(content))[0]:
        raise AlteredBytesError(errno.EBADMSG, "its message was altered on the way")
    return content


class Completion(NamedTuple):
    """What to do once a message is complete: count it in `owner.open`, and add the owner to `complete` after the last.

    buffer: where a received message goes; None: new memory, which is then `owner.data`.
    """

    owner: Any
    complete: list[Any]
    buffer: memoryview | None = None

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
        """Hand the bytes over, all of which are here."""
        if self.is_posted:
            return
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


class Loan(NamedTuple):
    """A message in the memory of the peer."""

    address: int
    size: int
    number: int
