"""What large-model support did, counted."""

from __future__ import annotations

from typing import NamedTuple


class Stats(NamedTuple):
    """Counts and bytes since the start. Peaks are bytes; what is saved several times counts once."""

    saved: int = 0
    """Memory blocks of at least the size that were saved."""
    out: int = 0
    bytes_out: int = 0
    back: int = 0
    bytes_in: int = 0
    waits: int = 0
    """Times that backward began an operation with what was not back yet; a GPU may still have it in time."""
    missed: int = 0
    """Of these, times that it had not even begun to come."""
    throttled: int = 0
    """Times that what comes next in forward was put behind memory that leaves."""
    refused: int = 0
    """Blocks that stayed as the host had no pinned memory for them."""
    device_peak: int = 0
    """The most that was taken on the device, other programs included, whenever a block was saved or fetched."""
    host_peak: int = 0
    capacity: int = 0
    """Bytes of the device."""

    def __str__(self) -> str:
        copies = f"{self.out} out ({size(self.bytes_out)}), {self.back} back ({size(self.bytes_in)})"
        peaks = (
            f"{size(self.host_peak)} on the host and {size(self.device_peak)} of {size(self.capacity)} on the device"
        )
        waits = f"backward waited {self.waits} times ({self.missed} not foreseen), forward {self.throttled}"
        refused = f", {self.refused} stayed for lack of pinned memory" if self.refused else ""
        return f"{self.saved} saved, {copies}, at most {peaks}; {waits}{refused}"


def added(*parts: Stats) -> Stats:
    """Add counts up; of several devices the peaks and capacities, too."""
    return Stats(*map(sum, zip(*parts, strict=True))) if parts else Stats()


def size(nbytes: float) -> str:
    """Write bytes for people.

    >>> size(1536), size(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while nbytes >= 1024 and len(units) > 1:
        nbytes /= 1024
        units.pop(0)
    return f"{nbytes:.0f} B" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"
