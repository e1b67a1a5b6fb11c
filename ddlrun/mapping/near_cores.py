"""Division of a package's cores among its ranks: by NUMA node, L3 domain and core, near their GPUs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine import GPU, Core, Machine
from ddlrun.mapping.core_shares import Cores, choose_groups, cut_equally, groups_of, span_groups

Groups = Mapping[int | None, Cores]


class LocalityLevel(NamedTuple):
    """A level of the machine below its packages: NUMA nodes or L3 domains.

    `group_of` and `home_of` return the group of a core and of a GPU (None: unknown), `distance` that of two groups.
    If it is `strict`, shares stay inside groups even if they then differ, else only if they remain equal.
    """

    group_of: Callable[[Core], int | None]
    home_of: Callable[[GPU], int | None]
    distance: Callable[[int | None, int | None], int]
    strict: bool


def levels_of(machine: Machine) -> tuple[LocalityLevel, ...]:
    """Return the levels of a machine, the outer one first."""
    numa = LocalityLevel(
        group_of=lambda core: core.numa_node,
        home_of=lambda gpu: gpu.numa_node,
        distance=lambda home, node: machine.numa_distance(home, node) or 0,
        strict=True,
    )
    l3 = LocalityLevel(
        group_of=lambda core: core.l3, home_of=lambda gpu: gpu.l3, distance=lambda _home, _domain: 0, strict=False
    )
    return numa, l3


def share_packages(
    packages: Sequence[Cores], homes: Sequence[int], gpus: Sequence[GPU | None], levels: Sequence[LocalityLevel]
) -> list[Cores]:
    """Divide each package's cores among its ranks. `homes` and `gpus` have the package and the GPU of each rank."""
    shares: list[Cores] = [()] * len(homes)
    for package, cores in enumerate(packages):
        ranks = [rank for rank, home in enumerate(homes) if home == package]
        inside = _share_kinds(cores, [gpus[rank] for rank in ranks], levels) if ranks else []
        for rank, share in zip(ranks, inside, strict=True):
            shares[rank] = share
    return shares


def _share_kinds(cores: Cores, gpus: Sequence[GPU | None], levels: Sequence[LocalityLevel]) -> list[Cores]:
    """Divide each kind of cores among all ranks; a kind with fewer cores than ranks stays idle if another has enough.

    Every other kind is divided in reverse, so that not always the same ranks have one core more.
    """
    by_kind = sorted(groups_of([cores], lambda core: core.kind), key=lambda kind: kind[0].kind, reverse=True)
    kinds = [kind for kind in by_kind if len(kind) >= len(gpus)]
    shares: list[list[Core]] = [[] for _ in gpus]
    for index, kind in enumerate(kinds or [cores]):
        step = -1 if index % 2 else 1
        for rank, part in enumerate(_divide(kind[::step], gpus[::step], levels)[::step]):
            shares[rank] += part
    return [sorted(share, key=lambda core: core.logical_index) for share in shares]


def _divide(cores: Cores, gpus: Sequence[GPU | None], levels: Sequence[LocalityLevel]) -> list[Cores]:
    """Divide cores among one rank per GPU (None: without a GPU)."""
    if not levels or len(gpus) == 1:
        return cut_equally(cores, len(gpus))
    level, *inner = levels
    groups = {level.group_of(group[0]): group for group in groups_of([cores], level.group_of)}
    homes = [None if gpu is None else level.home_of(gpu) for gpu in gpus]
    if len(groups) == 1:
        return _divide(cores, gpus, inner)
    if any(home in groups for home in homes if home is not None):
        return _divide_by_homes(groups, _choose_homes(groups, homes, level), gpus, levels)
    if len(gpus) < len(groups):
        shares = span_groups(list(groups.values()), len(gpus))
    else:
        names = list(groups)
        in_order = [names[index] for index in choose_groups(list(groups.values()), len(gpus))]
        shares = _divide_by_homes(groups, in_order, gpus, levels)
    return shares if level.strict or _equal(shares) else cut_equally(cores, len(gpus))


def _equal(shares: Sequence[Cores]) -> bool:
    """Check if shares differ by at most one core."""
    sizes = [len(share) for share in shares]
    return max(sizes) - min(sizes) <= 1


def _divide_by_homes(
    groups: Groups, homes: Sequence[int | None], gpus: Sequence[GPU | None], levels: Sequence[LocalityLevel]
) -> list[Cores]:
    """Divide each group among the ranks at home there, then the groups without ranks so that all come to equal."""
    level, *inner = levels
    shares: list[list[Core]] = [[] for _ in gpus]
    for group, cores in groups.items():
        ranks = [rank for rank, home in enumerate(homes) if home == group]
        inside = _divide(cores, [gpus[rank] for rank in ranks], inner) if ranks else []
        for rank, share in zip(ranks, inside, strict=True):
            shares[rank] = [*share]
    _share_rest(groups, homes, shares, level)
    return [*shares]


def _choose_homes(groups: Groups, wanted: Sequence[int | None], level: LocalityLevel) -> list[int | None]:
    """Return a group per rank: its GPU's if that has a core left, else the nearest, the least shared first."""
    overloaded = len(wanted) > sum(map(len, groups.values()))
    counts: Counter[int | None] = Counter()
    homes: dict[int, int | None] = {}
    for rank, home in enumerate(wanted):
        if home is not None and home in groups and (overloaded or counts[home] < len(groups[home])):
            homes[rank] = home
            counts[home] += 1
    for rank, home in enumerate(wanted):
        if rank not in homes:
            shares = {
                group: len(cores) / (counts[group] + 1)
                for group, cores in groups.items()
                if overloaded or counts[group] < len(cores)
            }
            homes[rank] = _nearest(shares, home, level)
            counts[homes[rank]] += 1
    return [homes[rank] for rank in range(len(wanted))]


def _nearest(shares: Mapping[int | None, float], home: int | None, level: LocalityLevel) -> int | None:
    """Return the group nearest to a GPU's; of several, the one with the largest share, then the nearest number."""
    if home is None:
        return max(shares, key=lambda group: shares[group])
    return min(shares, key=lambda group: (level.distance(home, group), -shares[group], abs(home - (group or 0))))


def _share_rest(
    groups: Groups, homes: Sequence[int | None], shares: Sequence[list[Core]], level: LocalityLevel
) -> None:
    """Add the cores of groups without ranks to shares, to the smallest first, from the nearest group."""
    names = list(groups)
    places = [names.index(home) for home in homes]
    rest = {place: groups[name] for place, name in enumerate(names) if name not in homes}
    needs = _needs([len(share) for share in shares], sum(map(len, rest.values())))
    nearest_first = sorted(
        (level.distance(homes[rank], names[place]), abs(own - place), rank, place)
        for rank, own in enumerate(places)
        for place in rest
    )
    for _, _, rank, place in nearest_first:
        cores, count = rest[place], min(needs[rank], len(rest[place]))
        cut = count if place > places[rank] else len(cores) - count  # the side towards the rank's own group
        taken, left = (cores[:cut], cores[cut:]) if place > places[rank] else (cores[cut:], cores[:cut])
        shares[rank] += taken
        rest[place] = left
        needs[rank] -= count


def _needs(sizes: Sequence[int], cores: int) -> list[int]:
    """Return the number of `cores` for each share that makes the smallest share as large as possible.

    >>> _needs([2, 4, 2], 5)
    [3, 0, 2]
    """
    needs = [0] * len(sizes)
    for _ in range(cores):
        rank = min(range(len(sizes)), key=lambda rank: sizes[rank] + needs[rank])
        needs[rank] += 1
    return needs
