"""Where a learner's time goes: into its own work, or into reductions."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType

# A reduction belongs to the next iteration's unless it has at least this share of the largest one's bytes: a loss or
# a metric is no step of its own. What was large once is forgotten after some hundred reductions.
SHARE, FORGET = 0.5, 0.99


class Iteration(NamedTuple):
    """Seconds of one iteration: outside of all calls of ddlrun.ddl, and inside; and when it ended (perf_counter)."""

    compute: float
    inside: float
    ended: float


class IterationTimer:
    """Follows calls of the library, `with pace:` around each, and finds iterations.

    One ends where a call returns that waited for reductions, none is under way, and their bytes are at least half of
    the largest until then: a blocking all_reduce_n, or all reductions from `start` to the last `wait`.
    """

    def __init__(self) -> None:
        self._at = perf_counter()
        self._compute = self._inside = self._largest = 0.0
        self._open = self._bytes = 0

    def __enter__(self) -> None:
        """Count the time until now as the learner's own."""
        now = perf_counter()
        self._compute += now - self._at
        self._at = now

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Count the time since then as spent in the library."""
        now = perf_counter()
        self._inside += now - self._at
        self._at = now

    def skip(self) -> None:
        """Count the time since the last call as nobody's."""
        self._at = perf_counter()

    def begun(self, size: int) -> None:
        """Count a reduction in that goes on after the call."""
        self._open += 1
        self._bytes += size

    def done(self) -> None:
        """Count a reduction out."""
        self._open -= 1

    def waited(self, size: int = 0) -> Iteration | None:
        """After a call that waited for `size` bytes (beside those that had begun): return the iteration that ends."""
        self._bytes += size
        if self._open:
            return None
        done, self._bytes = self._bytes, 0
        self._largest = max(self._largest * FORGET, float(done))
        if done < SHARE * self._largest or not done:
            return None
        ended = Iteration(self._compute, self._inside, self._at)
        self._compute = self._inside = 0.0
        return ended
