"""Tracebacks and other failures that are held back until the report of the job shows them, or the rank goes on."""

import time
from collections.abc import Iterable, Iterator

from ddlrun.plan.outcome import RankEnd
from ddlrun.plan.tracebacks import find_beginning, find_failure, is_collateral, last_lines, without_numbers
from ddlrun.wire.loop import NEVER

# A rank whose traceback is the reason for its end ends within this time.
HOLD_SECONDS = 5.0
MOST_BYTES = 12 << 10


class HeldTracebacks:
    """The end of each rank's standard error, from its first traceback on."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}
        self._since: dict[int, float] = {}
        """Rank that still runs -> the time of its traceback."""
        self._failed = False
        """Whether a rank has failed, which ends the job: then the report comes soon."""

    def add(self, rank: int, lines: bytes) -> bytes:
        """Hold back lines from a traceback on; return the lines to print now."""
        if rank in self._held:
            self._held[rank] += lines
            return self.release(rank) if len(self._held[rank]) > MOST_BYTES else b""
        start = find_beginning(lines)
        if start is None:
            return lines
        self._held[rank], self._since[rank] = lines[start:], time.monotonic()
        return lines[:start]

    def release(self, rank: int) -> bytes:
        """Return the lines of a rank that were held back, and hold them no longer."""
        self._since.pop(rank, None)
        return self._held.pop(rank, b"")

    def go_on(self, rank: int) -> bytes:
        """Return the held lines of a rank that goes on after its traceback; none if the rank has ended."""
        return self.release(rank) if rank in self._since else b""

    def keep(self, rank: int) -> None:
        """Hold back the traceback of a rank that has failed up to the end of the job."""
        self._since.pop(rank, None)
        self._failed = True

    def due(self) -> list[int]:
        """Return the ranks that still run long after their tracebacks; none once the job ends."""
        if self._failed:
            return []
        now = time.monotonic()
        return [rank for rank, since in self._since.items() if now >= since + HOLD_SECONDS]

    def deadline(self) -> float:
        """Return the time at which a rank is due."""
        return NEVER if self._failed else min(self._since.values(), default=NEVER) + HOLD_SECONDS

    def conclude(self, root: RankEnd | None, ends: Iterable[RankEnd]) -> Iterator[tuple[int, bytes]]:
        """Yield ranks and their tracebacks that the report of the job does not cover.

        The report shows that of the root, and one line for the ranks that lost their connections.
        """
        by_rank = {end.rank: end for end in ends}
        shown = set[str]()
        if root is not None:
            yield root.rank, _without_end(self.release(root.rank), root.tail)
            shown.add(_signature(root.tail))
        for rank in list(self._held):
            text, end = self.release(rank), by_rank.get(rank)
            covered = root is not None and end is not None and is_collateral(end)
            while text and (covered or _signature(text.decode(errors="replace")) in shown):
                text, covered = _before_failure(text), False
            if text:
                shown.add(_signature(text.decode(errors="replace")))
                yield rank, text


def _without_end(text: bytes, tail: str) -> bytes:
    """Return a text without the failure at its end if the report shows all of that."""
    failure = find_failure(text.decode(errors="replace"))
    return text if failure is None or failure.lines != last_lines(tail) else _before_failure(text)


def _before_failure(text: bytes) -> bytes:
    """Return the lines of a text before its last failure; none without one."""
    failure = find_failure(text.decode(errors="replace"))
    return b"".join(line + b"\n" for line in text.split(b"\n")[: failure.start if failure else 0])


def _signature(text: str) -> str:
    """Return a text that is equal for tracebacks of the same lines of the program."""
    return "\n".join(line if line.startswith(" ") else without_numbers(line) for line in last_lines(text))
