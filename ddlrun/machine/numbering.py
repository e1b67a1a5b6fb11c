"""Cores and packages numbered as hwloc numbers them: by the complete machine, from which forbidden CPUs are removed."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.machine import PU, Core
from ddlrun.ranges import render_ranges

Cpus = frozenset[int]
TypedSet = tuple[str, Cpus]
"""The type of an object, and its CPUs."""


class CpuSets(NamedTuple):
    """The online CPUs of a machine's objects, as OS indexes, including those that may not be used.

    `groups` are other objects that order cores: dies, books, caches. Where two objects overlap, the earlier one counts:
    packages, then `groups` in their order, `nodes`, `memory_nodes`: nodes of memory alone, with the CPUs near them, and
    `near`: groups of near nodes.
    """

    cores: Collection[Cpus]
    packages: Collection[Cpus]
    nodes: Mapping[int, Cpus]
    groups: Sequence[TypedSet] = ()
    memory_nodes: Mapping[int, Cpus] = MappingProxyType({})
    near: Sequence[TypedSet] = ()


class Allowed(NamedTuple):
    """The CPUs and NUMA nodes that may be used; None: all.

    A cpuset's `cpus` and `nodes` are the only ones that hwloc shows. The process's own `affinity` hides
    nothing: hwloc counts the cores outside it.
    """

    cpus: Cpus | None = None
    nodes: Cpus | None = None
    affinity: Cpus | None = None


ALL = Allowed()


class Numbering(NamedTuple):
    """Cores in logical order, and the logical indexes of the packages that have none.

    `uncertain`: a package before others is not counted, unless hwloc finds PCI devices in it.
    """

    cores: tuple[Core, ...]
    empty_packages: tuple[int, ...]
    uncertain: bool = False


def number_cores(sets: CpuSets, allowed: Allowed = ALL) -> Numbering:
    """Return the cores that may be used in hwloc's order: by their first CPU, from the outermost object inwards.

    A package without a CPU that may be used keeps its number while the memory of one of its NUMA nodes may be
    used. A core in several NUMA nodes gets the first.

    Raises:
        ValueError: a core is outside every package, or packages or cores overlap.
    """
    _check(sets)
    order = _ordered_cores(sets)
    package_of = {cpu: package for package in sets.packages for cpu in package}
    packages = list(dict.fromkeys(package_of[min(cpus)] for cpus in order))
    visible = [package for package in packages if _is_visible(package, sets, allowed)]
    shown = [cpus if allowed.cpus is None else cpus & allowed.cpus for cpus in order]
    indexes = {cpu: index for index, package in enumerate(visible) for cpu in package}
    nodes = {node: cpus for node, cpus in sets.nodes.items() if allowed.nodes is None or node in allowed.nodes}
    cores = tuple(_numbered([cpus for cpus in shown if cpus], indexes, nodes, allowed.affinity))
    empty = tuple(sorted(set(range(len(visible))) - {core.package for core in cores}))
    return Numbering(cores, empty, uncertain=packages[: len(visible)] != visible)


def _is_visible(package: Cpus, sets: CpuSets, allowed: Allowed) -> bool:
    """Check if hwloc keeps a package: a CPU of it, or the memory of a node inside it, may be used."""
    if allowed.cpus is None or not package.isdisjoint(allowed.cpus):
        return True
    nodes = {**sets.nodes, **sets.memory_nodes}
    inside = {node for node, cpus in nodes.items() if cpus and cpus <= package}
    return bool(inside if allowed.nodes is None else inside & allowed.nodes)


def _numbered(
    order: Sequence[Cpus], package_of: Mapping[int, int], nodes: Mapping[int, Cpus], affinity: Cpus | None
) -> Iterator[Core]:
    node_of = {cpu: node for node, cpus in sorted(nodes.items(), reverse=True) for cpu in cpus}
    sizes: Counter[int] = Counter()  # how many cores of each package have been numbered
    for number, cpus in enumerate(order):
        first = min(cpus)
        package = package_of[first]
        yield Core(
            logical_index=number,
            package=package,
            index_in_package=sizes[package],
            numa_node=node_of.get(first),
            pus=tuple(map(PU, sorted(cpus))),
            usable=affinity is None or not cpus.isdisjoint(affinity),
        )
        sizes[package] += 1


def _check(sets: CpuSets) -> None:
    for groups, kind in ((sets.cores, "cores"), (sets.packages, "packages")):
        if sum(map(len, groups)) > len(frozenset().union(*groups)):
            raise ValueError(f"{kind} overlap")
    package_of = {cpu: package for package in sets.packages for cpu in package}
    for cpus in sets.cores:
        if not cpus <= package_of.get(min(cpus), frozenset()):
            raise ValueError(f"the core of CPUs {render_ranges(cpus)} is in no package, or in several")


def counts_hidden_core(sets: CpuSets, allowed: Allowed) -> bool:
    """Check if a NUMA node is a hidden core: hwloc counts that core for its memory."""
    around = {*sets.packages, *(cpus for _, cpus in (*sets.groups, *sets.near))}  # which would have the memory
    for node, cpus in {**sets.nodes, **sets.memory_nodes}.items():
        hidden = allowed.cpus is not None and cpus.isdisjoint(allowed.cpus)
        usable = allowed.nodes is None or node in allowed.nodes
        if hidden and usable and cpus in sets.cores and cpus not in around:
            return True
    return False


def _ordered_cores(sets: CpuSets) -> list[Cpus]:
    """Return the cores depth first: by the first CPU of each object around them, the largest first."""
    around = nested([cpus for _, cpus in typed_sets(sets)])

    def path(cpus: Cpus) -> list[int]:
        objects = [group for group in around[min(cpus)] if cpus <= group]
        return [min(group) for group in sorted(objects, key=len, reverse=True)]

    return sorted(sets.cores, key=path)


def typed_sets(sets: CpuSets) -> list[TypedSet]:
    """Return all sets with their types; where two cross, the earlier one counts."""
    nodes = [*(sets.nodes[node] for node in sorted(sets.nodes)), *sets.memory_nodes.values()]
    inner = [*(("Core", cpus) for cpus in sets.cores), *(("Package", cpus) for cpus in sets.packages)]
    return [*inner, *sets.groups, *(("NUMANode", cpus) for cpus in nodes), *sets.near]


def with_near(sets: CpuSets, levels: Iterable[Iterable[frozenset[int]]]) -> CpuSets:
    """Return sets with the levels of groups of near nodes, up to the first one of which a group crosses an object.

    hwloc makes no further groups then. Groups that have the CPUs of one node add nothing.
    """
    for depth, level in enumerate(levels):
        groups = [frozenset[int]().union(*(sets.nodes.get(node, frozenset()) for node in nodes)) for nodes in level]
        groups = [cpus for cpus in groups if cpus and cpus not in sets.nodes.values()]
        sets = sets._replace(near=[*sets.near, *((f"Group {depth}", cpus) for cpus in groups)])
        around = nested([cpus for _, cpus in typed_sets(sets)])
        if not all(cpus in around[min(cpus)] for cpus in groups):
            break
    return sets


def nested(groups: Sequence[Cpus]) -> Mapping[int, Sequence[Cpus]]:
    """Return the groups around each CPU, without those that cross an earlier one: hwloc ignores them."""
    around: defaultdict[int, list[Cpus]] = defaultdict(list)
    for group in dict.fromkeys(filter(None, groups)):
        near = {other for cpu in group for other in around[cpu]}
        if all(group <= other or other <= group for other in near):
            for cpu in group:
                around[cpu].append(group)
    return around
