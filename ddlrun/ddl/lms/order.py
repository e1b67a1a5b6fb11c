"""Where saved memory is, in the order of saving: what was saved last is needed first."""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryLocation(IntEnum):  # an int, as it is looked up for each tensor
    """Where memory is: on the device alone, leaving it, on the host alone, coming back, on both."""

    HERE = 0
    LEAVING = 1
    AWAY = 2
    COMING = 3
    BACK = 4


class SaveOrder:
    """Numbers that rise with each save, each with its bytes and place; places may change while one goes over them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[MemoryLocation, int]] = {}
        self._numbers: dict[MemoryLocation, list[int]] = {place: [] for place in MemoryLocation}
        self.nbytes = dict.fromkeys(MemoryLocation, 0)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, number: int, nbytes: int) -> None:
        """Note a number that is above all others, here."""
        self._known[number] = MemoryLocation.HERE, nbytes
        self._numbers[MemoryLocation.HERE].append(number)
        self.nbytes[MemoryLocation.HERE] += nbytes

    def put(self, number: int, place: MemoryLocation) -> None:
        """Note where a number is now."""
        nbytes = self.drop(number)
        self._known[number] = place, nbytes
        insort(self._numbers[place], number)
        self.nbytes[place] += nbytes

    def drop(self, number: int) -> int:
        """Forget a number; return its bytes."""
        place, nbytes = self._known.pop(number)
        numbers = self._numbers[place]
        del numbers[bisect_left(numbers, number)]
        self.nbytes[place] -= nbytes
        return nbytes

    def place(self, number: int) -> MemoryLocation:
        """Return where a number is."""
        return self._known[number][0]

    def of(self, place: MemoryLocation) -> tuple[int, ...]:
        """Return the numbers of a place, the one saved longest ago first: it is needed last."""
        return tuple(self._numbers[place])

    def newest(self, place: MemoryLocation) -> int:
        """Return the bytes of what was saved last of a place, 0 if there is nothing."""
        return self._known[self._numbers[place][-1]][1] if self._numbers[place] else 0

    def next_needed(self, number: int, place: MemoryLocation) -> Iterator[int]:
        """Yield those of a place that a backward pass at `number` needs next, in that order."""
        numbers = self._numbers[place]
        while (at := bisect_left(numbers, number) - 1) >= 0:
            number = numbers[at]
            yield number

    def passed(self, number: int, place: MemoryLocation, slack: int = 8) -> tuple[int, ...]:
        """Return those of a place that a backward pass at `number` has passed over; an operation may save a few."""
        numbers = self._numbers[place]
        return tuple(numbers[bisect_left(numbers, number + slack + 1) :])
