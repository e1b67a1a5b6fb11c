"""The output of a command, read by a thread up to a limit."""

import threading
from collections.abc import Callable
from typing import IO

CHUNK = 1 << 16


class LimitedReader(threading.Thread):
    """A thread that reads a pipe to its end, or until there is too much."""

    def __init__(self, pipe: IO[bytes], most: int, on_excess: Callable[[], None]) -> None:
        """Start to read a pipe, closed in the end; the thread calls `on_excess` if more than `most` bytes arrive."""
        super().__init__(daemon=True)
        self._pipe, self._most, self._on_excess = pipe, most, on_excess
        self._data = bytearray()
        self.start()

    def run(self) -> None:
        """Read the pipe."""
        with self._pipe:
            while not self.too_long and (chunk := self._pipe.read1(CHUNK)):  # type: ignore[attr-defined]
                self._data += chunk
            if self.too_long:
                self._on_excess()

    @property
    def too_long(self) -> bool:
        """Whether more has arrived than the limit allows."""
        return len(self._data) > self._most

    @property
    def text(self) -> str:
        """What has arrived so far."""
        return self._data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
