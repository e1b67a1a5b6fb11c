"""Equal lines of several ranks, folded into one."""

import re
import time
from collections.abc import Iterator

# A line waits this long for the other ranks, which print it at about the same time.
WAIT_SECONDS = 0.5
# With more lines than this waiting, the first ones are printed.
MOST_LINES = 200
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


class FoldedLine:
    """A line, and the ranks that have printed it."""

    def __init__(self, stream: int, text: bytes) -> None:
        self.stream, self.text = stream, text
        self.ranks: set[int] = set()
        self.since = time.monotonic()


class LineFolder:
    """Lines that wait for equal ones of other ranks; each rank's lines stay in their order."""

    def __init__(self) -> None:
        self.ranks = 0
        """The number of ranks that may print a line: once all have, it waits no longer."""
        self._waiting: list[FoldedLine] = []
        self._last: dict[int, FoldedLine] = {}
        """Rank -> its last line."""

    def add(self, rank: int, stream: int, block: bytes) -> None:
        """Add a rank's lines."""
        for text in LINE.findall(block):
            line = self._place(rank, stream, text)
            line.ranks.add(rank)
            self._last[rank] = line

    def take(self, *, everything: bool = False) -> list[FoldedLine]:
        """Remove and return the first lines up to the last one that waits no longer; or all lines."""
        count = len(self._waiting) if everything else self._count_ready()
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        return ready

    def delay(self) -> float | None:
        """Return the seconds until a line has waited long enough; None: no line waits."""
        if not self._waiting:
            return None
        return max(0.0, min(line.since for line in self._waiting) + WAIT_SECONDS - time.monotonic())

    def _place(self, rank: int, stream: int, text: bytes) -> FoldedLine:
        """Return the first equal line after the rank's own last one; without any, insert one as early as possible.

        Equal lines that follow can then be folded too.
        """
        last = self._last.get(rank)
        start = self._waiting.index(last) + 1 if last in self._waiting else 0
        for line in self._waiting[start:]:
            if line.text == text and line.stream == stream:
                return line
        line = FoldedLine(stream, text)
        self._waiting.insert(start, line)
        return line

    def _count_ready(self) -> int:
        """Return the number of first lines that wait no longer, or stand before such a line."""
        limit = time.monotonic() - WAIT_SECONDS
        due = (number for number, line in self._numbered() if line.since <= limit)
        incomplete = (number for number, line in self._numbered() if len(line.ranks) < self.ranks)
        complete = next(incomplete, len(self._waiting) + 1) - 1
        return max(complete, len(self._waiting) - MOST_LINES, *due)

    def _numbered(self) -> Iterator[tuple[int, FoldedLine]]:
        return enumerate(self._waiting, 1)
