"""What hosts, or racks of them, reached together so far, and the groups that it shows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]
Unit = tuple[int, ...]
Floats = NDArray[np.float64]

# What pairs across reach together must be less than this share of what the same hosts reach inside.
SLOW = 0.8
# Two merges that are so far apart, as shares of the full rate, may be a rack's border.
GAP = 0.1


class PairRates:
    """What units reached together so far, bytes/s."""

    def __init__(self, units: int) -> None:
        self._seen: list[tuple[Pair, float]] = []
        self._units = units

    def add(self, pairs: Sequence[Pair], rates: Sequence[float]) -> None:
        """Keep what pairs reached."""
        self._seen += zip(pairs, rates, strict=True)

    def full(self) -> Floats:
        """Return each unit's full rate: its best but one, or what half of all units reach, if its best is no less.

        A single rate may be too high: a shaper lets pass at once what it has saved.
        """
        best = np.zeros((2, self._units))
        for pair, rate in self._seen:
            for unit in pair:
                best[:, unit] = sorted((*best[:, unit], rate))[1:]
        full: Floats = np.minimum(best[1], np.maximum(best[0], np.median(best[0])))
        return full

    def groups(self) -> list[Unit] | None:
        """Return the groups whose members are close; None where nobody is closer than others.

        Average linkage on the mean share of the full rate, cut at the first gap that is half as wide as the widest.
        """
        sums, counts = self._shares()
        groups: list[list[int]] = [[unit] for unit in range(self._units)]
        heights, partitions = [], [[*map(tuple, groups)]]
        alive = np.ones(self._units, dtype=bool)
        while alive.sum() > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                near = np.where((counts > 0) & np.outer(alive, alive), sums / counts, -1.0)
            np.fill_diagonal(near, -2.0)
            one, other = (int(at) for at in np.unravel_index(int(near.argmax()), near.shape))
            heights.append(max(float(near[one, other]), 0.0))
            for matrix in (sums, counts):
                matrix[one] += matrix[other]
                matrix[:, one] += matrix[:, other]
            alive[other] = False
            groups[one] += groups[other]
            partitions.append([tuple(sorted(group)) for group, here in zip(groups, alive, strict=True) if here])
        gaps = [high - low for high, low in zip(heights, heights[1:], strict=False)]
        widest = max(gaps, default=0.0)
        if widest < GAP:
            return None
        first = next(number for number, gap in enumerate(gaps) if gap >= widest / 2)
        return sorted(partitions[first + 1])

    def doubts(self, groups: Sequence[Unit], border: float) -> list[tuple[str, Unit]]:
        """Return which units do not behave as groups do, and how.

        `border` parts full rates from slow ones, as shares of what both units could do; medians count.
        """
        place = {unit: number for number, group in enumerate(groups) for unit in group}
        units: dict[Pair, list[float]] = {}
        pairs: dict[Pair, list[float]] = {}
        for ((one, other), _), share in zip(self._seen, self.shares(self._seen), strict=True):
            units.setdefault((one, place[other]), []).append(share)
            units.setdefault((other, place[one]), []).append(share)
            if place[one] != place[other]:
                pairs.setdefault((min(place[one], place[other]), max(place[one], place[other])), []).append(share)
        fast = {key for key, shares in units.items() if np.median(shares) > border}
        near = {number for key, shares in pairs.items() if np.median(shares) > border for number in key}
        everyone = range(len(groups))
        alone = [group[0] for group in groups if len(group) == 1]
        # Two that are alone share no uplink with anybody, so nothing but themselves can make them slow.
        slow = {one for one in alone for other in alone if (one, place[other]) in {*units} - fast and one != other}
        lost = {number for number in everyone for other in everyone[number + 1 :] if (number, other) not in pairs}
        found = {
            "slow inside their rack": {one for one, number in units if place[one] == number} - {
                one for one, number in fast if place[one] == number
            },
            "as fast with another rack": {one for one, number in fast if place[one] != number},
            "hardly slower with another rack": {unit for unit, number in place.items() if number in near},
            "slow with whoever is alone, too": slow,
            "never met another rack": {unit for unit, number in place.items() if number in lost},
        }  # fmt: skip
        return [(why, tuple(sorted(some))) for why, some in found.items() if some]

    def slow(self) -> float:
        """Return how many of all meetings were slow."""
        return float(np.mean(self.shares(self._seen) < SLOW))

    def shares(self, seen: Sequence[tuple[Pair, float]]) -> Floats:
        """Return rates as shares of what both units could do."""
        full = self.full()
        ones, others = np.array([pair for pair, _ in seen]).T
        rates = np.array([rate for _, rate in seen])
        shares: Floats = np.minimum(rates / np.minimum(full[ones], full[others]), 1.0)
        return shares

    def _shares(self) -> tuple[Floats, Floats]:
        sums, counts = np.zeros((self._units,) * 2), np.zeros((self._units,) * 2)
        for ((one, other), _), share in zip(self._seen, self.shares(self._seen), strict=True):
            for at in ((one, other), (other, one)):
                sums[at] += share
                counts[at] += 1
        return sums, counts
