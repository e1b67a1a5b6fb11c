"""Groups of cores, and their division among ranks without regard to GPUs."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence, Sized
from itertools import pairwise, zip_longest

from ddlrun.machine import Core

Cores = Sequence[Core]


def leave_out_reserved(packages: Sequence[Cores], count: int) -> list[Cores]:
    """Return packages without `count` cores, which are left to interrupts and system services.

    These are the first core of each L3 domain if `count` is enough for all domains, else of each NUMA node; then
    the second of each, and so on.
    """
    if not count:
        return [*packages]
    by_node, by_domain = (
        groups_of(packages, key)
        for key in (lambda core: (core.package, core.numa_node), lambda core: (core.package, core.numa_node, core.l3))
    )
    in_turn = zip_longest(*(by_node if count < len(by_domain) else by_domain))
    reserved = set([core for turn in in_turn for core in turn if core is not None][:count])
    return [[core for core in package if core not in reserved] for package in packages]


def groups_of(packages: Sequence[Cores], key: Callable[[Core], Hashable]) -> list[Cores]:
    """Return the cores of packages in groups with the same key, in order."""
    groups: dict[Hashable, list[Core]] = {}
    for package in packages:
        for core in package:
            groups.setdefault(key(core), []).append(core)
    return list(groups.values())


def keep_first_packages(packages: Sequence[Cores], needed: int) -> list[Cores]:
    """Return the first packages that together have `needed` cores; the others become empty."""
    first_packages: list[Cores] = []
    for package in packages:
        first_packages.append(package if sum(map(len, first_packages)) < needed else [])
    return first_packages


def choose_groups(groups: Sequence[Sized], ranks: int, taken: Sequence[int] = ()) -> list[int]:
    """Return the group (package or NUMA node) of each rank, in ascending order, that makes the smallest share largest.

    Of equally good groups it is the one with the fewest ranks, and never an empty one; `taken` has the groups of other
    ranks.

    >>> choose_groups([range(10), range(10)], 3)
    [0, 0, 1]
    >>> choose_groups([range(4), range(2)], 2)
    [0, 1]
    >>> choose_groups([range(0), range(1)], 2)
    [1, 1]
    """
    filled = [index for index, group in enumerate(groups) if group]
    counts = Counter(taken)
    homes: list[int] = []

    def preference(index: int) -> tuple[int, int, float]:
        ranks = counts[index] + 1
        return len(groups[index]) // ranks, -ranks, len(groups[index]) / ranks

    for _ in range(ranks):
        homes.append(max(filled, key=preference))
        counts[homes[-1]] += 1
    return sorted(homes)


def exact_shares(
    packages: Sequence[Cores], homes: Sequence[int], nodes: Sequence[int | None], count: int
) -> list[Cores]:
    """Return `count` cores of its package for each rank.

    They are of the given NUMA node, else of another one that has enough left, else of what is left of several.
    """
    shares: list[Cores] = []
    used: set[Core] = set()
    for home, node in zip(homes, nodes, strict=True):
        left = [core for core in packages[home] if core not in used]
        inside = sorted(groups_of([left], lambda core: core.numa_node), key=lambda group: group[0].numa_node != node)
        shares.append(next((group for group in inside if len(group) >= count), left)[:count])
        used.update(shares[-1])
    return shares


def span_groups(groups: Sequence[Cores], ranks: int) -> list[Cores]:
    """Return a share per rank that consists of whole neighbouring groups (packages or NUMA nodes).

    There are fewer ranks than groups. Each cut is where the shares come nearest to equal ones.
    """
    filled = [group for group in groups if group]
    ends = [sum(map(len, filled[:count])) for count in range(len(filled) + 1)]
    cuts = [0]
    for rank in range(1, ranks):
        possible = range(cuts[-1] + 1, len(filled) - (ranks - rank) + 1)
        cuts.append(min(possible, key=lambda cut: abs(ends[cut] - ends[-1] * rank / ranks)))
    cuts.append(len(filled))
    return [[core for group in filled[low:high] for core in group] for low, high in pairwise(cuts)]


def cut_equally(cores: Cores, ranks: int) -> list[Cores]:
    """Return one run of cores per rank; they differ by at most one core. More ranks than cores share them."""
    if ranks > len(cores):
        return [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    size, larger = divmod(len(cores), ranks)
    ends = [size * rank + min(rank, larger) for rank in range(ranks + 1)]
    return [cores[low:high] for low, high in pairwise(ends)]
