"""Rates of pairs of hosts, or of racks, and the groups that they show."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]
Unit = tuple[int, ...]
Floats = NDArray[np.float64]

# Pairs across groups must together stay below this share of the rate that the same hosts reach inside.
SLOW = 0.8
# Two merges whose heights, as shares of the full rate, differ by this may be the border of a rack.
GAP = 0.1


class PairRates:
    """The rates that pairs of units have reached so far, bytes/s."""

    def __init__(self, units: int) -> None:
        self._measured: list[tuple[Pair, float]] = []
        self._units = units

    def add(self, pairs: Sequence[Pair], rates: Sequence[float]) -> None:
        """Add the rates of pairs."""
        self._measured += zip(pairs, rates, strict=True)

    def full(self) -> Floats:
        """Return the full rate of each unit: its second best, or the median of all second bests if that is higher.

        The best rate alone may be too high, as a shaper lets a burst pass at line rate; it is the upper bound.
        """
        best = np.zeros((2, self._units))
        for pair, rate in self._measured:
            for unit in pair:
                best[:, unit] = sorted((*best[:, unit], rate))[1:]
        full: Floats = np.minimum(best[1], np.maximum(best[0], np.median(best[0])))
        return full

    def groups(self) -> list[Unit] | None:
        """Return the groups of units that are faster with each other than with others; None if there are none.

        Average linkage on the mean share of the full rate, cut at the first gap at least half as wide as the widest.
        """
        sums, counts = self._shares()
        groups: list[list[int]] = [[unit] for unit in range(self._units)]
        heights, partitions = [], [[*map(tuple, groups)]]
        alive = np.ones(self._units, dtype=bool)
        while alive.sum() > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                near = np.where((counts > 0) & np.outer(alive, alive), sums / counts, -1.0)
            np.fill_diagonal(near, -2.0)
            first, second = (int(at) for at in np.unravel_index(int(near.argmax()), near.shape))
            heights.append(max(float(near[first, second]), 0.0))
            for matrix in (sums, counts):
                matrix[first] += matrix[second]
                matrix[:, first] += matrix[:, second]
            alive[second] = False
            groups[first] += groups[second]
            partitions.append([tuple(sorted(group)) for group, here in zip(groups, alive, strict=True) if here])
        gaps = [high - low for high, low in zip(heights, heights[1:], strict=False)]
        widest = max(gaps, default=0.0)
        if widest < GAP:
            return None
        cut = next(number for number, gap in enumerate(gaps) if gap >= widest / 2)
        return sorted(partitions[cut + 1])

    def doubts(self, groups: Sequence[Unit], border: float) -> list[tuple[str, Unit]]:
        """Return the units that contradict the groups, with the reasons.

        `border` separates full rates from slow ones, as a share of the lower full rate of two units; medians count.
        """
        group_of = {unit: number for number, group in enumerate(groups) for unit in group}
        with_group: dict[Pair, list[float]] = {}
        between: dict[Pair, list[float]] = {}
        for ((unit, other), _), share in zip(self._measured, self.shares(self._measured), strict=True):
            own, its = group_of[unit], group_of[other]
            with_group.setdefault((unit, its), []).append(share)
            with_group.setdefault((other, own), []).append(share)
            if own != its:
                between.setdefault((min(own, its), max(own, its)), []).append(share)
        fast = {key for key, shares in with_group.items() if np.median(shares) > border}
        near = {number for key, shares in between.items() if np.median(shares) > border for number in key}
        numbers = range(len(groups))
        unmet = {number for number in numbers for other in numbers[number + 1 :] if (number, other) not in between}
        # Units of one share no uplink with others, so two of them that are slow together are slow by themselves.
        single = [group[0] for group in groups if len(group) == 1]
        slow = with_group.keys() - fast
        doubts = {
            "slow inside their rack": {unit for unit, number in with_group if group_of[unit] == number}
            - {unit for unit, number in fast if group_of[unit] == number},
            "as fast with another rack": {unit for unit, number in fast if group_of[unit] != number},
            "hardly slower with another rack": {unit for unit, number in group_of.items() if number in near},
            "slow with another host that is alone": {
                unit for unit in single for other in single if (unit, group_of[other]) in slow and unit != other
            },
            "never paired with another rack": {unit for unit, number in group_of.items() if number in unmet},
        }
        return [(reason, tuple(sorted(units))) for reason, units in doubts.items() if units]

    def slow(self) -> float:
        """Return the share of all pairs that were slow."""
        return float(np.mean(self.shares(self._measured) < SLOW))

    def shares(self, measured: Sequence[tuple[Pair, float]]) -> Floats:
        """Return rates as shares of the lower full rate of the two units."""
        full = self.full()
        units, others = np.array([pair for pair, _ in measured]).T
        rates = np.array([rate for _, rate in measured])
        shares: Floats = np.minimum(rates / np.minimum(full[units], full[others]), 1.0)
        return shares

    def _shares(self) -> tuple[Floats, Floats]:
        sums, counts = np.zeros((self._units,) * 2), np.zeros((self._units,) * 2)
        for ((unit, other), _), share in zip(self._measured, self.shares(self._measured), strict=True):
            for at in ((unit, other), (other, unit)):
                sums[at] += share
                counts[at] += 1
        return sums, counts
