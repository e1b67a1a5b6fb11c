"""The time of a learner's iterations: in its own computation, and in reductions."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

# An iteration reduces at least this share of the bytes of the largest one: a loss or a metric is not an iteration of
# its own, but counts with the next one. The largest decays by FORGET per reduction, so after some hundred it is
# forgotten.
SHARE, FORGET = 0.5, 0.99


@dataclass(frozen=True, slots=True)
class Iteration:
    """Seconds of an iteration outside and inside of calls of ddlrun.ddl, and its end by perf_counter."""

    compute: float
    inside: float
    ended: float


class IterationTimer:
    """Times the calls of the library, `with timer:` around each, and finds the ends of iterations.

    An iteration ends when a call that waited for reductions returns, none is in progress, and their bytes are at least
    half of the largest so far. So it is a blocking all_reduce_n, or all reductions from `start` to the last `wait`.
    """

    def __init__(self) -> None:
        self._at = perf_counter()
        self._compute = self._inside = self._largest = 0.0
        self._in_progress = self._bytes = 0

    def __enter__(self) -> None:
        """Count the time until now as computation."""
        now = perf_counter()
        self._compute += now - self._at
        self._at = now

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Count the time since `__enter__` as spent in the library."""
        now = perf_counter()
        self._inside += now - self._at
        self._at = now

    def skip(self) -> None:
        """Leave out the time since the last call."""
        self._at = perf_counter()

    def begin_reduction(self, size: int) -> None:
        """Count a reduction of `size` bytes that continues after the call."""
        self._in_progress += 1
        self._bytes += size

    def end_reduction(self) -> None:
        """Count a reduction as complete."""
        self._in_progress -= 1

    def end_wait(self, size: int = 0) -> Iteration | None:
        """Return the iteration that ends with a call that waited, or None.

        `size` is the bytes that the call reduced, beside those of `begin_reduction`.
        """
        self._bytes += size
        if self._in_progress:
            return None
        reduced, self._bytes = self._bytes, 0
        self._largest = max(self._largest * FORGET, float(reduced))
        if reduced < SHARE * self._largest or not reduced:
            return None
        iteration = Iteration(self._compute, self._inside, self._at)
        self._compute = self._inside = 0.0
        return iteration
