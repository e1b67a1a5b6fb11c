"""Hierarchy of a network, from the rates of pairs of hosts under load.

An idle uplink looks like any other link, and so does its latency. Load shows the racks: hosts of one rack reach each
other at the full rate of their NICs whatever the others do; pairs across racks share an uplink and slow each other
down. So all hosts send at the same time, in pairs, in the rounds of a tournament; pairs that are never slow are
grouped; then the groups are tested: all pairs inside them at once, and all pairs across.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddlrun.measure.pair_rates import SLOW, Pair, PairRates, Unit

Measure = Callable[[Sequence[Pair]], Sequence[float]]
"""Let pairs of hosts, each host in at most one, exchange data at the same time; return the bytes/s of each pair."""

# With more hosts than this, rounds are a sample of the tournament; further samples follow until the groups are clear.
MOST_HOSTS = 64
MOST_TRIES = 5
# Few hosts meet more than twice, each time with other pairs at the same time.
LEAST_ROUNDS = 24
# A smaller share of slow pairs than this is noise.
NOISE = 0.2
# Inside a group, where nothing is shared, pairs reach at least this share of the full rate.
FULL = 0.85
# Of three units only two exchange data at a time, which loads no shared link.
LEAST_UNITS = 4
TESTS = 4


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason why a level is not certain, and the numbers of the hosts that it concerns."""

    reason: str
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HierarchyLevel:
    """Groups of units (racks of hosts, aisles of racks), the rates that show them, and doubts.

    `inside` and `across`: bytes/s of a pair of hosts, one direction, while all pairs inside groups, or across groups,
    exchange data.
    """

    groups: tuple[Unit, ...]
    inside: float
    across: float
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class HierarchyResult:
    """Levels from the racks upwards, none where the network is flat; and the number of rounds."""

    levels: tuple[HierarchyLevel, ...]
    rounds: int


def tournament(units: int, shuffle: random.Random) -> Iterator[list[Pair]]:
    """Yield the rounds of a tournament: every unit meets every other once; with an odd number one rests.

    The circle method (Kirkman, 1850), with units in a random order.

    >>> [len(pairs) for pairs in tournament(5, random.Random(1))]
    [2, 2, 2, 2, 2]
    """
    circle: list[int | None] = [*range(units), *([None] if units % 2 else [])]
    shuffle.shuffle(circle)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(unit, other) for unit, other in pairs if unit is not None and other is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def find_levels(hosts: int, measure: Measure, seed: int = 1) -> HierarchyResult:
    """Find racks, then groups of racks, and so on until the rest is flat."""
    search = _LevelSearch(measure, random.Random(seed))  # noqa: S311 - the order of pairs
    levels: list[HierarchyLevel] = []
    units: list[Unit] = [(host,) for host in range(hosts)]
    while len(units) >= LEAST_UNITS:
        level = search.split(units)
        if level is None:
            break
        levels.append(level)
        if level.doubts:
            break
        units = list(level.groups)
    return HierarchyResult(tuple(levels), search.rounds)


class _LevelSearch:
    """The search for one level at a time; counts the rounds."""

    def __init__(self, measure: Measure, shuffle: random.Random) -> None:
        self._measure, self._shuffle = measure, shuffle
        self.rounds = 0

    def split(self, units: Sequence[Unit]) -> HierarchyLevel | None:
        """Return the level of the groups that units form; None where load shows none."""
        rates = PairRates(len(units))
        level = None
        for _ in range(max(MOST_TRIES, len(units) // MOST_HOSTS)):
            self._run_tournament(units, rates)
            groups = rates.groups()
            level = self._test(units, groups, rates) if groups is not None else None
            if level is None and rates.slow() < NOISE:
                return None
            if level is not None and not level.doubts:
                return level
        every = tuple(host for unit in units for host in unit)
        return level or HierarchyLevel(tuple(units), 0.0, 0.0, (Doubt("slow at times, without a pattern", every),))

    def _run_tournament(self, units: Sequence[Unit], rates: PairRates) -> None:
        """Let all units meet at least twice; of many units, run a sample of the rounds."""
        rounds_run = tournaments = 0
        many = len(units) > MOST_HOSTS
        while rounds_run < LEAST_ROUNDS or (tournaments < 2 and not many):
            rounds = list(tournament(len(units), self._shuffle))
            for pairs in self._shuffle.sample(rounds, MOST_HOSTS) if many else rounds:
                rates.add(pairs, self._run_round(units, pairs))
            rounds_run, tournaments = rounds_run + len(rounds), tournaments + 1

    def _run_round(self, units: Sequence[Unit], pairs: Sequence[Pair]) -> list[float]:
        """Let the hosts of paired units exchange data; return the mean bytes/s of a pair of hosts per pair of units."""
        self.rounds += 1
        hosts, ends = [], []
        for unit, other in pairs:
            hosts += list(zip(units[unit], units[other], strict=False))
            ends.append(len(hosts))
        rates = list(self._measure(hosts))
        return [sum(rates[start:end]) / (end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _test(self, units: Sequence[Unit], groups: Sequence[Unit], rates: PairRates) -> HierarchyLevel | None:
        """Load the groups inside, then across, in turn; return None where that makes no difference."""
        inside: list[tuple[Pair, float]] = []
        across: list[tuple[Pair, float]] = []
        for _ in range(TESTS):
            for measured, pairs in ((inside, self._inside(groups)), (across, self._across(groups))):
                of_pairs = self._run_round(units, pairs)
                rates.add(pairs, of_pairs)
                measured.extend(zip(pairs, of_pairs, strict=True))
        share_inside, share_across = (float(np.median(rates.shares(measured))) for measured in (inside, across))
        if share_across > SLOW * share_inside:
            return None
        doubts = rates.doubts(groups, (max(share_inside, FULL) + share_across) / 2)
        if share_inside < FULL:
            doubts.append(("not at the full rate inside their racks", tuple(range(len(units)))))
        return HierarchyLevel(
            tuple(_hosts(units, group) for group in groups),
            inside=float(np.median([rate for _, rate in inside])),
            across=float(np.median([rate for _, rate in across])),
            doubts=tuple(Doubt(reason, _hosts(units, numbers)) for reason, numbers in doubts),
        )

    def _inside(self, groups: Sequence[Unit]) -> list[Pair]:
        pairs = []
        for group in groups:
            order = self._shuffle.sample(group, len(group))
            pairs += list(zip(order[::2], order[1::2], strict=False))
        return pairs

    def _across(self, groups: Sequence[Unit]) -> list[Pair]:
        """Pair as many units as possible across groups: each with the unit half of the groups' order away."""
        shuffled = self._shuffle.sample(list(groups), len(groups))
        order = [unit for group in shuffled for unit in self._shuffle.sample(group, len(group))]
        group_of = {unit: number for number, group in enumerate(groups) for unit in group}
        half = len(order) // 2
        pairs = zip(order[:half], order[len(order) - half :], strict=True)
        return [(unit, other) for unit, other in pairs if group_of[unit] != group_of[other]]


def _hosts(units: Sequence[Unit], numbers: Sequence[int]) -> Unit:
    return tuple(host for number in numbers for host in units[number])
