"""Types of objects that hwloc finds at several depths of its tree, so that mpirun cannot count them."""

from collections.abc import Iterable, Sequence

from ddlrun.machine.numbering import Allowed, CpuSets, TypedSet, nested, typed_sets

# Types of objects with the same CPUs, from the outermost inwards. Others are groups, which hwloc leaves out there.
_ORDER = ("Package", "Die", "L5", "L4", "L3", "L2", "L1", "Core")


class _Object:
    """An object of hwloc's tree: its type, its first CPU, and the types of the objects inside it."""

    def __init__(self, kind: str, first: int) -> None:
        self.kind = kind
        self.first = first
        self.children: list[_Object] = []
        self.inside: set[str] = set()


def count_threads(sets: CpuSets) -> CpuSets:
    """Return sets whose cores are the threads, in the order of the cores around them."""
    threads = {frozenset({cpu}) for cpus in sets.cores for cpu in cpus}
    return sets._replace(cores=threads, groups=[*sets.groups, *(("Core", cpus) for cpus in sets.cores)])


def types_at_several_depths(sets: CpuSets, allowed: Allowed) -> set[str]:
    """Return the types of objects that are at several depths, without those that a cpuset hides."""
    cpus_of = [(kind, cpus) for kind, cpus in typed_sets(sets) if cpus]
    return at_several_depths([item for item in cpus_of if allowed.cpus is None or item[1] & allowed.cpus])


def at_several_depths(sets: Sequence[TypedSet]) -> set[str]:
    """Return the types of objects that are at several depths.

    A level of the tree has the objects of one type: that of the first object, or of one that has such an object inside.

    >>> cores, caches = (frozenset({0}), frozenset({1, 2})), map(frozenset, ({0}, {1}, {2}))
    >>> at_several_depths([*(("Core", cpus) for cpus in cores), *(("L1", cpus) for cpus in caches)])
    {'Core'}
    """
    left, seen, several = _outermost(sets), set[str](), set[str]()
    while left:
        top = left[0]
        for other in left:
            if other.kind != top.kind and top.kind in other.inside:
                top = other
        several |= {top.kind} & seen
        seen.add(top.kind)
        left = [child for item in left for child in (item.children if item.kind == top.kind else [item])]
    return several


def _outermost(sets: Sequence[TypedSet]) -> list[_Object]:
    """Return the objects that no other one contains, with those inside them, in the order of their first CPUs."""
    root = _Object("Machine", 0)
    around: dict[int, list[_Object]] = {}
    for kind, cpus in sorted(_kept(sets), key=lambda item: (-len(item[1]), _place(item[0]))):
        item = _Object(kind, min(cpus))
        outer = around.get(item.first, [root])
        outer[-1].children.append(item)
        for other in outer:
            other.inside.add(kind)
        inner = [*outer, item]
        around |= dict.fromkeys(cpus, inner)
    for item in {id(item): item for path in around.values() for item in path}.values():
        item.children.sort(key=lambda child: child.first)
    return root.children


def _kept(sets: Sequence[TypedSet]) -> Iterable[TypedSet]:
    """Return the sets that hwloc keeps: those that cross no earlier one, and groups with CPUs of their own alone."""
    apart = {cpus for groups in nested([cpus for _, cpus in sets]).values() for cpus in groups}
    named = {cpus for kind, cpus in sets if kind in _ORDER}
    groups = {cpus: kind for kind, cpus in reversed(sets) if kind not in _ORDER and cpus not in named}
    every = {*((kind, cpus) for kind, cpus in sets if kind in _ORDER), *((kind, cpus) for cpus, kind in groups.items())}
    return ((kind, cpus) for kind, cpus in every if cpus in apart)


def _place(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else -1
