"""Equal lines of several ranks, folded into one."""

import re
import time
from collections import Counter

from ddlrun.wire.loop import NEVER

# A line waits this long for the other ranks, which print it at about the same time.
WAIT_SECONDS = 0.5
# With more lines than this waiting, the first ones are printed.
MOST_LINES = 2000
LINE = rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+"


class FoldedLine:
    """A line, and the ranks that have printed it."""

    def __init__(self, stream: int, text: bytes) -> None:
        self.stream, self.text = stream, text
        self.ranks: set[int] = set()
        self.since = time.monotonic()


class LineFolder:
    """Lines that wait for equal ones of other ranks; each rank's lines stay in their order."""

    def __init__(self, ranks: int) -> None:
        """Fold the lines of a number of ranks; once all have printed a line, it waits no longer."""
        self._ranks = ranks
        self._waiting: list[FoldedLine] = []
        self._count: Counter[tuple[int, bytes]] = Counter()
        """Stream and text -> the number of lines that wait with them."""
        self._ready: list[FoldedLine] = []
        """Lines that no longer wait, as there were too many."""
        self._last: dict[int, FoldedLine] = {}
        """Rank -> its last line."""

    def add(self, rank: int, stream: int, block: bytes) -> None:
        """Add a rank's lines."""
        for text in re.findall(LINE, block):
            line = self._place(rank, stream, text)
            line.ranks.add(rank)
            self._last[rank] = line
            if len(self._waiting) > MOST_LINES:
                self._release(1)

    def take(self, *, everything: bool = False) -> list[FoldedLine]:
        """Remove and return the first lines up to the last one that waits no longer; or all lines."""
        self._release(len(self._waiting) if everything else self._count_ready())
        ready, self._ready = self._ready, []
        return ready

    def deadline(self) -> float:
        """Return the time at which a line has waited long enough."""
        return min((line.since for line in self._waiting), default=NEVER) + WAIT_SECONDS

    def _place(self, rank: int, stream: int, text: bytes) -> FoldedLine:
        """Return the first equal line after the rank's own last one; without any, insert one as early as possible.

        Equal lines that follow can then be folded too.
        """
        start = self._position(self._last.get(rank)) + 1
        if self._count[stream, text]:
            for line in self._waiting[start:]:
                if line.text == text and line.stream == stream:
                    return line
        line = FoldedLine(stream, text)
        self._waiting.insert(start, line)
        self._count[stream, text] += 1
        return line

    def _position(self, line: FoldedLine | None) -> int:
        """Return the position of a line; -1 if it waits no longer."""
        try:
            return -1 if line is None else self._waiting.index(line)
        except ValueError:
            return -1

    def _count_ready(self) -> int:
        """Return the number of first lines that wait no longer, or stand before such a line."""
        limit = time.monotonic() - WAIT_SECONDS
        ready, all_complete = 0, True
        for number, line in enumerate(self._waiting, 1):
            all_complete = all_complete and len(line.ranks) >= self._ranks
            if all_complete or line.since <= limit:
                ready = number
        return ready

    def _release(self, count: int) -> None:
        """Let the first lines wait no longer."""
        for line in self._waiting[:count]:
            self._count[line.stream, line.text] -= 1
            if not self._count[line.stream, line.text]:
                del self._count[line.stream, line.text]
        self._ready += self._waiting[:count]
        del self._waiting[:count]
