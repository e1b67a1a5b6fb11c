"""Statistics of large-model support."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ddlrun.units import render_memory


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts, and bytes, since the start.

    A block is the memory of one or more saved tensors. Only blocks of at least `size_kb` count, and a block that is
    saved several times counts once.
    """

    saved: int = 0
    """Blocks that were saved."""
    out: int = 0
    """Blocks that left the device."""
    bytes_out: int = 0
    """Bytes of the blocks that left."""
    back: int = 0
    """Blocks that came back."""
    bytes_in: int = 0
    """Bytes of the blocks that came back."""
    waits: int = 0
    """Times that backward began an operation before its memory was back. A GPU may still receive it in time."""
    missed: int = 0
    """Of these, times that the copy back had not begun."""
    throttled: int = 0
    """Times that the next work of forward was queued behind memory that leaves."""
    refused: int = 0
    """Blocks that stayed because the host had no pinned memory."""
    device_peak: int = 0
    """The most bytes in use on the device, other programs included, when a block was saved or fetched."""
    host_peak: int = 0
    """The most bytes on the host."""
    capacity: int = 0
    """Bytes of the device's memory."""

    def __str__(self) -> str:
        copies = f"{self.out} out ({render_memory(self.bytes_out)}), {self.back} back ({render_memory(self.bytes_in)})"
        device = f"{render_memory(self.device_peak)} of {render_memory(self.capacity)} on the device"
        peaks = f"{render_memory(self.host_peak)} on the host and {device}"
        waits = f"backward waited {self.waits} times ({self.missed} not foreseen), forward {self.throttled}"
        refused = f", {self.refused} stayed for lack of pinned memory" if self.refused else ""
        return f"{self.saved} saved, {copies}, at most {peaks}; {waits}{refused}"


def sum_stats(*parts: Stats) -> Stats:
    """Return the sums of all fields; of several devices the peaks and capacities are added too."""
    return Stats(*map(sum, zip(*map(astuple, parts), strict=True))) if parts else Stats()
