"""CPU lists as the kernel writes them, and cores numbered as hwloc does."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from ddlrun.machine import PU, Core

# More hardware threads than this are no machine, but a broken text.
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
            raise ValueError(f"{part!r} is no range of CPUs")
        first, last, by = map(int, numbers)
        if not first <= last < MOST_PUS or not by:
            raise ValueError(f"{part!r} is no range of CPUs")
        pus.update(range(first, last + 1, by))
    return frozenset(pus)


def cpu_list(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does.

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
    """Return the cores numbered as hwloc does: by their first PU, from the outside in.

    `threads` has each core's PUs, `packages`, `nodes` and `caches` the PUs inside each (OS indexes). A
    core is usable if one of its PUs is `allowed` (None: all). A core in several NUMA nodes gets the
    first. Raises ValueError where a core is outside of every package, or packages or cores overlap.
    """
    threads = list(threads)
    _check(threads, packages)
    outer = {pus for pus in (*packages, *nodes.values(), *caches) if pus}
    order = sorted(threads, key=lambda pus: _path(pus, outer))
    return tuple(_numbered(order, list(packages), nodes, allowed))


def _check(threads: Collection[frozenset[int]], packages: Collection[frozenset[int]]) -> None:
    for groups, what in ((threads, "cores"), (packages, "packages")):
        if sum(map(len, groups)) > len(frozenset().union(*groups)):
            raise ValueError(f"{what} overlap")
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
    inside: dict[frozenset[int], list[int]] = {}
    for number, pus in enumerate(order):
        first = min(pus)
        place = inside.setdefault(package_of[first], [len(inside), 0])
        usable = allowed is None or bool(pus & allowed)
        yield Core(number, place[0], place[1], node_of.get(first), tuple(map(PU, sorted(pus))), usable=usable)
        place[1] += 1


def _path(pus: frozenset[int], groups: set[frozenset[int]]) -> list[int]:
    """Return the first PU of each group around a core, largest group first: hwloc's depth-first order."""
    around = sorted((-len(group), min(group)) for group in groups if pus <= group)
    return [*(first for _, first in around), min(pus)]
