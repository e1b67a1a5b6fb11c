"""The order in which memory was saved, and where it is now. Memory that was saved last is needed first."""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryLocation(IntEnum):  # an int, because it is a dictionary key that is looked up for each tensor
    """The location of a block: on the device, leaving it, on the host, returning to the device, on both."""

    ON_DEVICE = 0
    LEAVING = 1
    ON_HOST = 2
    RETURNING = 3
    ON_BOTH = 4


class SaveOrder:
    """Numbers in the order of saving, each with its bytes and location.

    Locations may change while a caller iterates over the numbers.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[MemoryLocation, int]] = {}
        self._numbers: dict[MemoryLocation, list[int]] = {location: [] for location in MemoryLocation}
        self.nbytes = dict.fromkeys(MemoryLocation, 0)
        """The bytes in each location."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, number: int, nbytes: int) -> None:
        """Add a number, which is above all others, on the device."""
        self._entries[number] = MemoryLocation.ON_DEVICE, nbytes
        self._numbers[MemoryLocation.ON_DEVICE].append(number)
        self.nbytes[MemoryLocation.ON_DEVICE] += nbytes

    def move(self, number: int, location: MemoryLocation) -> None:
        """Set the location of a number."""
        nbytes = self.remove(number)
        self._entries[number] = location, nbytes
        insort(self._numbers[location], number)
        self.nbytes[location] += nbytes

    def remove(self, number: int) -> int:
        """Remove a number and return its bytes."""
        location, nbytes = self._entries.pop(number)
        numbers = self._numbers[location]
        del numbers[bisect_left(numbers, number)]
        self.nbytes[location] -= nbytes
        return nbytes

    def location(self, number: int) -> MemoryLocation:
        """Return the location of a number."""
        return self._entries[number][0]

    def at(self, location: MemoryLocation) -> tuple[int, ...]:
        """Return the numbers in a location, the one saved first in front: it is needed last."""
        return tuple(self._numbers[location])

    def newest(self, location: MemoryLocation) -> int:
        """Return the bytes of the number in a location that was saved last, 0 if there is none."""
        numbers = self._numbers[location]
        return self._entries[numbers[-1]][1] if numbers else 0

    def on_host(self) -> int:
        """Return the bytes that are on the host or on their way to it or from it."""
        return sum(self.nbytes.values()) - self.nbytes[MemoryLocation.ON_DEVICE]

    def on_device(self) -> int:
        """Return the bytes on the device, including those on their way to it or from it."""
        return sum(self.nbytes.values()) - self.nbytes[MemoryLocation.ON_HOST]

    def next_needed(self, number: int, location: MemoryLocation) -> Iterator[int]:
        """Yield the numbers in a location that a backward pass at `number` needs next, in that order."""
        numbers = self._numbers[location]
        while (at := bisect_left(numbers, number) - 1) >= 0:
            number = numbers[at]
            yield number

    def passed(self, number: int, location: MemoryLocation, slack: int = 8) -> tuple[int, ...]:
        """Return the numbers in a location that a backward pass at `number` has passed over.

        An operation may save several tensors, so the next `slack` numbers do not count as passed.
        """
        numbers = self._numbers[location]
        return tuple(numbers[bisect_left(numbers, number + slack + 1) :])
