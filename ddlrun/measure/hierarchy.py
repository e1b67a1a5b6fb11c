"""The hierarchy of a network, found by what pairs of hosts reach while all others talk, too.

An idle uplink looks like any other link, and so does its latency. What tells a rack from another is load: hosts of one
rack reach each other at the full rate of their NICs whatever the others do; pairs across share an uplink and slow each
other down. So all hosts talk at once, in pairs, in the rounds of a tournament; pairs that are never slow are grouped;
then the groups are put to the test: all pairs inside of them at once, and all pairs across.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ddlrun.measure.pair_rates import SLOW, Pair, PairRates, Unit

Measure = Callable[[Sequence[Pair]], Sequence[float]]
"""Let pairs of hosts, of which each host is in one at most, talk both ways at once; return bytes/s of each."""

# More hosts than this play a sample of a tournament's rounds, and more of them until the groups are clear.
MOST_HOSTS = 64
MOST_TRIES = 5
# Few hosts meet more than once: each time others talk beside them.
LEAST_ROUNDS = 24
# Fewer slow meetings than this share are noise.
NOISE = 0.2
# Inside a group at least this share of the full rate is left, as nothing there is shared.
FULL = 0.85
# Of three only two can talk at once, and nobody loads their links.
LEAST_UNITS = 4
TESTS = 4


class HierarchyLevel(NamedTuple):
    """Groups of units (racks of hosts, aisles of racks), and how sure that is.

    `inside` and `across`: bytes/s of a pair of hosts, one direction, when all pairs inside groups, or across, talk at
    once. `doubts`: why it is not certain, in words; hosts by number.
    """

    groups: tuple[Unit, ...]
    inside: float
    across: float
    doubts: tuple[tuple[str, tuple[int, ...]], ...] = ()


class HierarchyResult(NamedTuple):
    """Levels from the racks upwards, none where the network is flat; rounds that were played."""

    levels: tuple[HierarchyLevel, ...]
    rounds: int


def tournament(players: int, shuffle: random.Random) -> Iterator[list[Pair]]:
    """Yield the rounds of a tournament: everybody meets everybody once; one rests where players are odd.

    The circle method (Kirkman, 1850), with players in a random order.

    >>> [len(pairs) for pairs in tournament(5, random.Random(1))]
    [2, 2, 2, 2, 2]
    """
    seats: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    shuffle.shuffle(seats)
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def find_levels(hosts: int, measure: Measure, seed: int = 1) -> HierarchyResult:
    """Find racks, and what racks are grouped by, and so on until what is left is flat."""
    field = _Field(measure, random.Random(seed))  # noqa: S311 - an order of meetings
    levels: list[HierarchyLevel] = []
    units: list[Unit] = [(host,) for host in range(hosts)]
    while len(units) >= LEAST_UNITS:
        level = field.split(units)
        if level is None:
            break
        levels.append(level)
        if level.doubts:
            break
        units = list(level.groups)
    return HierarchyResult(tuple(levels), field.rounds)


class _Field:
    """Where units meet; counts the rounds."""

    def __init__(self, measure: Measure, shuffle: random.Random) -> None:
        self._measure, self._shuffle = measure, shuffle
        self.rounds = 0

    def split(self, units: Sequence[Unit]) -> HierarchyLevel | None:
        """Return the groups of units; None where load shows none."""
        meetings = PairRates(len(units))
        level = None
        for _ in range(max(MOST_TRIES, len(units) // MOST_HOSTS)):
            self._play(units, meetings)
            groups = meetings.groups()
            level = self._tested(units, groups, meetings) if groups is not None else None
            if level is None and meetings.slow() < NOISE:
                return None
            if level is not None and not level.doubts:
                return level
        every = tuple(host for unit in units for host in unit)
        return level or HierarchyLevel(tuple(units), 0.0, 0.0, (("slow at times, in no order", every),))

    def _play(self, units: Sequence[Unit], meetings: PairRates) -> None:
        """Let all units meet twice or more, or a sample of them."""
        played = tournaments = 0
        many = len(units) > MOST_HOSTS
        while played < LEAST_ROUNDS or (tournaments < 2 and not many):
            rounds = list(tournament(len(units), self._shuffle))
            for pairs in self._shuffle.sample(rounds, MOST_HOSTS) if many else rounds:
                meetings.add(pairs, self.meet(units, pairs))
            played, tournaments = played + len(rounds), tournaments + 1

    def meet(self, units: Sequence[Unit], pairs: Sequence[Pair]) -> list[float]:
        """Let units talk: the hosts of one with those of the other; return what a pair of hosts reaches, bytes/s."""
        self.rounds += 1
        hosts, ends = [], []
        for one, other in pairs:
            hosts += list(zip(units[one], units[other], strict=False))
            ends.append(len(hosts))
        rates = list(self._measure(hosts))
        return [
            sum(rates[start:end]) / (end - start)
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]  # fmt: skip

    def _tested(self, units: Sequence[Unit], groups: Sequence[Unit], meetings: PairRates) -> HierarchyLevel | None:
        """Load the groups inside, then across, in turn; None where that makes no difference."""
        met: dict[str, list[tuple[Pair, float]]] = {"inside": [], "across": []}
        for _ in range(TESTS):
            for name, choose in (("inside", self._inside), ("across", self._across)):
                pairs = choose(groups)
                rates = self.meet(units, pairs)
                meetings.add(pairs, rates)
                met[name] += zip(pairs, rates, strict=True)
        within, beyond = (float(np.median(meetings.shares(met[name]))) for name in met)
        if beyond > SLOW * within:
            return None
        doubts = meetings.doubts(groups, max(within + beyond, FULL + beyond) / 2)
        if within < FULL:
            doubts.append(("not at the full rate inside their racks", tuple(range(len(units)))))
        inside, across = (float(np.median([rate for _, rate in met[name]])) for name in met)
        named = tuple((why, _hosts(units, some)) for why, some in doubts)
        return HierarchyLevel(tuple(_hosts(units, group) for group in groups), inside, across, named)

    def _inside(self, groups: Sequence[Unit]) -> list[Pair]:
        pairs = []
        for group in groups:
            order = self._shuffle.sample(group, len(group))
            pairs += list(zip(order[::2], order[1::2], strict=False))
        return pairs

    def _across(self, groups: Sequence[Unit]) -> list[Pair]:
        """Pair as many as possible with one of another group: in the order of groups, with who is half of all away."""
        turn = self._shuffle.sample(list(groups), len(groups))
        order = [unit for group in turn for unit in self._shuffle.sample(group, len(group))]
        place = {unit: number for number, group in enumerate(groups) for unit in group}
        half = len(order) // 2
        pairs = zip(order[:half], order[len(order) - half :], strict=True)
        return [(one, other) for one, other in pairs if place[one] != place[other]]


def _hosts(units: Sequence[Unit], numbers: Sequence[int]) -> Unit:
    return tuple(host for number in numbers for host in units[number])
