"""The memory that a pass needs beside its saved blocks, learned in the first passes."""

from __future__ import annotations

# The first pass also allocates gradients and the optimizer's state, and may try algorithms; only the second one counts.
PASSES = 2
# A limit that never matters.
NO_LIMIT = 1 << 62


class Demand:
    """The bytes of saved blocks that may stay on a device, so that the rest of a pass has room.

    While it learns, none may stay. It learns again once a block is larger than all before. A pass ends with the first
    save after all blocks are gone that had been saved when backward began.

    Args:
        capacity: The bytes that may be in use.
        learns: Whether the peaks of the device are known. Without them, the number of blocks is not limited.
    """

    def __init__(self, capacity: int, *, learns: bool) -> None:
        self._capacity, self._learns = capacity, learns
        self._passes_left = PASSES + 1 if learns else 0
        self._base = self._most = self._need = 0
        self._largest = self._largest_of_pass = 0
        self._saved: int | None = 0
        """The number of blocks that had been saved when backward began; None in forward."""
        self.held = 0
        """The bytes of the blocks on the device since the last save or fetch."""

    @property
    def learning(self) -> bool:
        """True in a pass of which the peaks are wanted."""
        return self._passes_left > 0

    @property
    def limit(self) -> int:
        """The bytes of saved blocks that may stay on the device."""
        if not self._learns:
            return NO_LIMIT
        return 0 if self.learning else max(0, self._capacity - self._base - self._need)

    def note_peak(self, peak: int) -> None:
        """Take the most bytes that were in use since the last save or fetch into account."""
        self._most = max(self._most, peak - self.held - self._base)

    def note_block(self, nbytes: int) -> None:
        """Take the size of a new block into account."""
        self._largest_of_pass = max(self._largest_of_pass, nbytes)
        if self._learns and nbytes > self._largest:
            self._largest, self._passes_left = nbytes, max(self._passes_left, PASSES)

    def note_backward(self, saved: int) -> None:
        """Note that backward goes on, after `saved` blocks in all."""
        if self._saved is None:
            self._saved = saved

    def is_over(self, oldest: int) -> bool:
        """Return True if a pass is over; `oldest` is the number of the oldest block that is alive."""
        return self._saved is not None and oldest >= self._saved

    def begin(self, base: int) -> None:
        """Begin a pass, when `base` bytes are in use beside the blocks."""
        if self.learning:
            self._passes_left -= 1
            # A pass over smaller tensors than others had needs less.
            self._need = self._most * self._largest // max(self._largest_of_pass, 1)
        self._base, self._most, self._largest_of_pass, self._saved = base, 0, 0, None
