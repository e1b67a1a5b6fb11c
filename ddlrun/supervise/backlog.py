"""Output that waits for a slow reader: in memory, and beyond a limit in a file."""

import os

MOST_IN_MEMORY = 8 << 20
CHUNK = 1 << 20


class Backlog:
    """A queue of bytes."""

    def __init__(self, path: str, limit: int = MOST_IN_MEMORY) -> None:
        """Create an empty queue; what is beyond a limit in memory goes to a file, which is unlinked at once."""
        self._path, self._limit = path, limit
        self._memory = bytearray()
        self._file: int | None = None
        self._read_at = self._end = 0

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self._memory) + self._end - self._read_at

    def append(self, block: bytes) -> int:
        """Add bytes; return the number of those that could not be stored, as on a full disk."""
        if self._file is None and len(self._memory) <= self._limit:
            self._memory += block
            return 0
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                os.unlink(self._path)
            written = os.pwrite(self._file, block, self._end)
        except OSError:
            return len(block)
        self._end += written
        return len(block) - written

    def head(self, size: int) -> bytes:
        """Return the first bytes."""
        if not self._memory and self._file is not None:
            self._memory += os.pread(self._file, CHUNK, self._read_at)
            self._read_at += len(self._memory)
            if self._read_at == self._end:
                self._close()
        return bytes(self._memory[:size])

    def remove(self, size: int) -> None:
        """Remove bytes that `head` has returned."""
        del self._memory[:size]

    def clear(self) -> None:
        """Remove all bytes."""
        self._memory.clear()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._read_at = self._end = 0
