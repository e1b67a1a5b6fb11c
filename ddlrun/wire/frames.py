"""The frames of a connection: a kind (one byte), the length of a text (four bytes) and a code; the text and its code.

Without a text, the second code is absent, too. Each protocol is a table of kinds with the length of the longest text.
Raw bytes may follow a frame if its text announces them (a payload): see Decoder.take. Kinds of fixed
length (Fixed) have shorter frames: the kind, the text, and one code.

Where the path is authenticated already, as by ssh, codes are checksums: CRC-32 of the head and the text, starting
from its number in its direction, from 1. They detect bytes that were altered, lost or repeated.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Protocol

    Bytes = bytes | memoryview

    class Protection(Protocol):
        """The protection of the frames of one direction, in their order."""

        code_bytes: int

        def protect(self, head: bytes, text: Bytes) -> tuple[Bytes, ...]:
            """Return the next text and its code, as they are sent; they are `code_bytes` longer than the text."""

        def reveal(self, head: bytes, protected: Bytes | bytearray) -> bytes:
            """Return the next text, given what `protect` returned. Raises FrameError if its code differs."""


HEAD_BYTES = 5
# Shorter texts are joined with their heads and codes: a copy takes less time than several buffers.
SHORT = 4096
NOTHING = memoryview(b"")


class FrameError(Exception):
    """The other end would not have sent these bytes; the text completes a sentence."""


class Agreement:
    """The result of a handshake: the claim of the end that has connected, and the protection of both directions."""

    __slots__ = ("claim", "incoming", "outgoing")

    def __init__(self, claim: bytes, outgoing: Protection, incoming: Protection) -> None:
        self.claim, self.outgoing, self.incoming = claim, outgoing, incoming


class Fixed(int):
    """The length of all texts of a kind, at least 4."""


class Checksums:
    """The checksums of the frames of one direction, in their order."""

    code_bytes = 4

    def __init__(self) -> None:
        from binascii import crc32  # noqa: PLC0415 - 0.4 ms, which keepers do not need

        self._crc32 = crc32
        self._number = 0

    def protect(self, head: bytes, text: Bytes) -> tuple[Bytes, ...]:
        """Return the next text and its checksum."""
        self._number = self._number + 1 & 0xFFFFFFFF
        return text, self._crc32(text, self._crc32(head, self._number)).to_bytes(4, "big")

    def reveal(self, head: bytes, protected: Bytes | bytearray) -> bytes:
        """Return the next text. Raises FrameError if its code differs."""
        self._number = self._number + 1 & 0xFFFFFFFF
        text = protected[:-4]
        if protected[-4:] != self._crc32(text, self._crc32(head, self._number)).to_bytes(4, "big"):
            raise FrameError("a message was altered on the way")
        return text if text.__class__ is bytes else bytes(text)


class Encoder:
    """Makes the frames of one direction."""

    __slots__ = ("_limits", "_protect")

    def __init__(self, protection: Protection, limits: Mapping[bytes, int]) -> None:
        """Protect frames; `limits` has the length of the longest text per kind."""
        self._protect, self._limits = protection.protect, limits

    def encode(self, kind: bytes, text: Bytes = b"") -> list[Bytes]:
        """Return the buffers of the next frame; a text that is too long is cut off."""
        limit = self._limits[kind]
        if limit.__class__ is Fixed:
            return [kind + b"".join(self._protect(kind, text))]
        text = text[:limit]
        head = kind + len(text).to_bytes(4, "big")
        buffers = [head, *self._protect(head, b"")]
        if text:
            buffers += self._protect(head, text)
        return buffers if len(text) > SHORT else [b"".join(buffers)]


class Decoder:
    """Splits the bytes of one direction into frames, and checks them."""

    __slots__ = ("_at", "_code_bytes", "_data", "_head", "_limits", "_reveal", "_wanted")

    def __init__(self, protection: Protection, limits: Mapping[bytes, int]) -> None:
        """Check frames; `limits` has the length of the longest text per kind that may arrive."""
        self._reveal, self._code_bytes, self._limits = protection.reveal, protection.code_bytes, limits
        self._data: Bytes | bytearray = b""
        self._at = 0
        self._head = b""
        """The head of the frame whose text has not arrived completely."""
        self._wanted = HEAD_BYTES + self._code_bytes

    def feed(self, data: Bytes | bytearray) -> Iterator[tuple[bytes, bytes]]:
        """Add received bytes; yield the frames that are now complete, as (kind, text).

        Raises:
            FrameError: A frame is too long, of an unknown kind, or not the next one of its sender.
        """
        self.add(data)
        while len(self._data) - self._at >= self._wanted:
            kind = b"" if self._head else bytes(self._data[self._at : self._at + 1])
            limit = self._limits.get(kind)
            if limit.__class__ is Fixed:
                frame = self.next_fixed()
                if frame is None:
                    self._wanted = 1 + limit + self._code_bytes
                    return
                self._wanted = HEAD_BYTES + self._code_bytes
                yield frame
                continue
            protected = memoryview(self._data)[self._at : self._at + self._wanted]
            self._at += self._wanted
            if self._head:
                head, self._head = self._head, b""
                text = self._reveal(head, protected)
            else:
                head, text = bytes(protected[:HEAD_BYTES]), b""
                self._reveal(head, protected[HEAD_BYTES:])
                length = self._length_of(head)
                if length:
                    self._head, self._wanted = head, length + self._code_bytes
                    continue
            self._wanted = HEAD_BYTES + self._code_bytes
            yield head[:1], text

    def next_fixed(self) -> tuple[bytes, bytes] | None:
        """Return the next frame if it is complete, where all kinds are Fixed: quicker than feed. Raises FrameError."""
        data, at = self._data, self._at
        if at == len(data):
            return None
        if data.__class__ is not bytes:
            data = self._data = bytes(data)
        kind = data[at : at + 1]
        limit = self._limits.get(kind)
        if limit is None:
            raise _unknown(kind)
        end = at + 1 + limit + self._code_bytes
        if end > len(data):
            return None
        self._at = end
        return kind, self._reveal(kind, data[at + 1 : end])

    def take(self, most: int) -> memoryview:
        """Take up to some of the bytes that have arrived after a frame, while `feed` stands at it.

        They are its payload. If some are missing, no byte is left here, and they are the next that arrive.
        """
        if self._at == len(self._data):
            return NOTHING
        taken = memoryview(self._data)[self._at : self._at + most]
        self._at += len(taken)
        return taken

    def add(self, data: Bytes | bytearray) -> None:
        """Add received bytes to those of an incomplete frame, which are copied once at most, or take their place."""
        if self._at == len(self._data):
            self._data, self._at = data, 0
            return
        if self._at or not isinstance(self._data, bytearray):
            self._data, self._at = bytearray(memoryview(self._data)[self._at :]), 0
        self._data += data

    def _length_of(self, head: bytes) -> int:
        kind, length = head[:1], int.from_bytes(head[1:], "big")
        most = self._limits.get(kind)
        if most is None:
            raise _unknown(kind)
        if length > most:
            raise FrameError(f"a message of kind {kind!r} has {length} bytes, at most {most} are allowed")
        return length


def _unknown(kind: bytes) -> FrameError:
    return FrameError(f"a message is of kind {kind!r}, which must not come here")
