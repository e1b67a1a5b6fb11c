"""CPU lists in the kernel's format, and cores numbered as hwloc numbers them."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from ddlrun.machine import PU, Core

# A text with more hardware threads than this is broken.
MOST_PUS = 1 << 16


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse the kernel's list format, with util-linux's steps. Raises ValueError on anything else.

    >>> sorted(parse_cpu_list("0-2,8,10-14:2"))
    [0, 1, 2, 8, 10, 12, 14]
    """
    pus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        numbers = [low, high or low, step or "1"]
        if not all(number.isascii() and number.isdigit() and len(number) < 9 for number in numbers):
            raise ValueError(f"{part!r} is not a range of CPUs")
        first, last, by = map(int, numbers)
        if not first <= last < MOST_PUS or not by:
            raise ValueError(f"{part!r} is not a range of CPUs")
        pus.update(range(first, last + 1, by))
    return frozenset(pus)


def cpu_list(numbers: Iterable[int]) -> str:
    """Render numbers in the kernel's list format.

    >>> cpu_list([3, 0, 1, 8])
    '0-1,3,8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)


def number_cores(
    threads: Iterable[frozenset[int]],
    packages: Collection[frozenset[int]],
    nodes: Mapping[int, frozenset[int]],
    *,
    caches: Iterable[frozenset[int]] = (),
    allowed: frozenset[int] | None = None,
) -> tuple[Core, ...]:
    """Return the cores in hwloc's order: by their first PU, from the outermost object inwards.

    A core in several NUMA nodes gets the first.

    Args:
        threads: the PUs of each core, as OS indexes.
        packages: the PUs of each package.
        nodes: the PUs of each NUMA node, by its OS index.
        caches: the PUs of each cache.
        allowed: the PUs that may be used; a core with one of them is usable. None: all.

    Raises:
        ValueError: a core is outside every package, or packages or cores overlap.
    """
    threads = list(threads)
    _check(threads, packages)
    outer = {pus for pus in (*packages, *nodes.values(), *caches) if pus}
    order = sorted(threads, key=lambda pus: _path(pus, outer))
    return tuple(_numbered(order, list(packages), nodes, allowed))


def _check(threads: Collection[frozenset[int]], packages: Collection[frozenset[int]]) -> None:
    for groups, kind in ((threads, "cores"), (packages, "packages")):
        if sum(map(len, groups)) > len(frozenset().union(*groups)):
            raise ValueError(f"{kind} overlap")
    for pus in threads:
        if not any(pus <= package for package in packages):
            raise ValueError(f"the core of CPUs {cpu_list(pus)} is in no package, or in several")


def _numbered(
    order: list[frozenset[int]],
    packages: list[frozenset[int]],
    nodes: Mapping[int, frozenset[int]],
    allowed: frozenset[int] | None,
) -> Iterator[Core]:
    package_of = {pu: package for package in packages for pu in package}
    node_of = {pu: node for node, pus in sorted(nodes.items(), reverse=True) for pu in pus}
    package_indexes: dict[frozenset[int], int] = {}
    sizes: Counter[frozenset[int]] = Counter()  # how many cores of each package have been numbered
    for number, pus in enumerate(order):
        first = min(pus)
        inside = package_of[first]
        yield Core(
            logical_index=number,
            package=package_indexes.setdefault(inside, len(package_indexes)),
            index_in_package=sizes[inside],
            numa_node=node_of.get(first),
            pus=tuple(map(PU, sorted(pus))),
            usable=allowed is None or bool(pus & allowed),
        )
        sizes[inside] += 1


def _path(pus: frozenset[int], groups: set[frozenset[int]]) -> list[int]:
    """Return a sort key in hwloc's depth-first order: the first PU of each group around a core, largest group first."""
    around = sorted((-len(group), min(group)) for group in groups if pus <= group)
    return [*(first for _, first in around), min(pus)]
