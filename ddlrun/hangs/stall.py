"""Stalls: ranks without output for a time."""


class StallDetector:
    """The times of the ranks' last output; times are those of time.monotonic()."""

    def __init__(self, seconds: float) -> None:
        """Expect output of each rank within some seconds."""
        self._seconds = seconds
        self._printed_at: dict[int, float] = {}
        self._silent_since_start: set[int] = set()
        self._stalled: set[int] = set()

    def start(self, rank: int, now: float) -> None:
        """Record that a rank has started."""
        self._printed_at[rank] = now
        self._silent_since_start.add(rank)

    def add_output(self, rank: int, now: float) -> None:
        """Record output of a rank."""
        self._printed_at[rank] = now
        self._silent_since_start.discard(rank)
        self._stalled.discard(rank)

    def end(self, rank: int) -> None:
        """Forget a rank that has ended."""
        self._printed_at.pop(rank, None)
        self._stalled.discard(rank)

    def stalled_ranks(self) -> list[int]:
        """Return the ranks that `find_new` has returned, and that have printed nothing since."""
        return sorted(self._stalled)

    def find_new(self, now: float, last_output: float) -> set[int]:
        """Return the ranks that have become silent, once until they print again.

        A rank that has never printed counts as silent only if no rank has printed since.
        """
        limit = now - self._seconds
        silent = {
            rank
            for rank, printed_at in self._printed_at.items()
            if printed_at < limit
            and rank not in self._stalled
            and (rank not in self._silent_since_start or last_output < limit)
        }
        self._stalled |= silent
        return silent
