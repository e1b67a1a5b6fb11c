"""The connections between agents: messages in both directions, over pipes that lead through ssh or the like.

A message is a head and a text. The head is the kind (one byte), the length of the text, the checksum of the text, and
a checksum of all that and of the message's number in its direction (four bytes each). ssh detects altered data; other
launchers may not. A text of several words is packed with their lengths.
"""

from __future__ import annotations

import os
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEAD = 13
CHUNK = 1 << 16

# To an agent.
JOB = b"J"
"""The job: see job.py."""
TERMINATE = b"T"
"""End the ranks: SIGTERM now, SIGKILL after a grace in seconds (text)."""
# From an agent; from the root to ddlrun: EXITED, of failed ranks, UNFINISHED and LOST.
EXITED = b"X"
"""A rank, and the exit code of its keeper or minus the signal that killed it, separated by a space."""
UNFINISHED = b"U"
"""A rank that has ended with 0 after MPI_Init, but without MPI_Finalize."""
LOST = b"L"
"""The name of a host whose agent is gone, and the reason, separated by a tab."""
DONE = b"D"
"""All ranks of the agent and of those below it have ended."""
ALTERED = b"A"
"""A message to the agent was altered on the way; the agent ends its ranks."""
# In both directions.
PMI = b"P"
"""From an agent: the number of a host and the message of its PMI server to the root, packed. To an agent: the root's
message to the PMI servers of all hosts."""


class AlteredError(Exception):
    """A message was altered on the way."""


def pack(kind: bytes, text: bytes, number: int) -> bytes:
    """Return a message as it is sent, given its number in its direction."""
    head = kind + len(text).to_bytes(4, "big") + crc32(text).to_bytes(4, "big")
    return head + crc32(head, number).to_bytes(4, "big") + text


def pack_words(words: Iterable[bytes]) -> bytes:
    """Return words as one text."""
    return b"".join(len(word).to_bytes(4, "big") + word for word in words)


def unpack_words(text: bytes) -> list[bytes]:
    """Return the words of a text.

    >>> unpack_words(pack_words([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    words, at = [], 0
    while at < len(text):
        end = at + 4 + int.from_bytes(text[at : at + 4], "big")
        words.append(text[at + 4 : end])
        at = end
    return words


class Channel:
    """The connection to another agent, over two pipes that do not block; -1: there is no such direction."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        for fd in (read_fd, write_fd):
            if fd >= 0:
                os.set_blocking(fd, False)
                os.set_inheritable(fd, False)
        self._received = bytearray()
        self._unsent = bytearray()
        self._sent_count = self._received_count = 0
        self.open = True
        """Whether the other end may still send something."""

    @property
    def unsent(self) -> int:
        """The number of bytes that wait to be sent."""
        return len(self._unsent)

    def send(self, kind: bytes, text: bytes = b"") -> None:
        """Send a message as soon as the other end takes it."""
        self.send_bytes(pack(kind, text, self._sent_count))
        self._sent_count += 1

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are no message, such as a script."""
        if self.write_fd >= 0:
            self._unsent += data
            self.flush()

    def flush(self) -> None:
        """Send as much as the connection takes now."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.write_fd, self._unsent[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:  # the other end is gone, which the next read reports
            self._unsent.clear()

    def receive(self) -> None:
        """Read what has arrived; `open` is False after the end."""
        try:
            data = os.read(self.read_fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        self.open = bool(data)

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the complete messages as (kind, text). Raises AlteredError."""
        while len(self._received) >= HEAD:
            head = bytes(self._received[:HEAD])
            if crc32(head[:-4], self._received_count) != int.from_bytes(head[-4:], "big"):
                raise AlteredError
            end = HEAD + int.from_bytes(head[1:5], "big")
            if len(self._received) < end:
                return
            text = bytes(self._received[HEAD:end])
            del self._received[:end]
            self._received_count += 1
            if crc32(text) != int.from_bytes(head[5:9], "big"):
                raise AlteredError
            yield head[:1], text

    def take_line(self, start: bytes) -> bytes | None:
        """Return the first line that begins with some bytes, without these; None until it has arrived.

        What a login shell prints before it is dropped.
        """
        while b"\n" in self._received:
            line, _, rest = bytes(self._received).partition(b"\n")
            self._received[:] = rest
            _, mark, words = line.partition(start)
            if mark:
                return words
        return None

    def finish_sending(self) -> None:
        """Close the direction to the other end, which ends by itself then."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1
            self._unsent.clear()

    def close(self) -> None:
        """Close both directions."""
        self.finish_sending()
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1
        self.open = False
