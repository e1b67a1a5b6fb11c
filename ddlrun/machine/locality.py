"""L3 domains, kinds of cores and NUMA distances: facts that complete a machine for the placement."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine import Core, Machine

Cpus = frozenset[int]
# Cores that are at most this many times as fast as the slowest of a kind are of that kind.
SAME_KIND = 1.15


class Locality(NamedTuple):
    """What a host's tools list beside its cores, by OS indexes.

    `speeds` has a number per CPU that is larger for faster cores, `distances` the row of each NUMA node by the
    other node.
    """

    l3_domains: Iterable[Cpus] = ()
    speeds: Mapping[int, int] = {}
    distances: Mapping[int, Mapping[int, int]] = {}


def with_locality(cores: Iterable[Core], locality: Locality) -> tuple[Core, ...]:
    """Return cores with their L3 domains and kinds."""
    cores = tuple(cores)
    domains = _domains(cores, locality.l3_domains)
    speeds = [max(locality.speeds.get(pu.os_index, 0) for pu in core.pus) for core in cores]
    kinds = _kinds(speeds)
    return tuple(
        core._replace(l3=domains.get(core.pus[0].os_index), kind=kinds[speed])
        for core, speed in zip(cores, speeds, strict=True)
    )


def _kinds(speeds: Iterable[int]) -> dict[int, int]:
    """Return the kind of each speed: equal cores that clock differently are of one kind.

    >>> _kinds([718, 731, 997, 1024])
    {718: 0, 731: 0, 997: 1, 1024: 1}
    """
    kinds: dict[int, int] = {}
    slowest = kind = -1
    for speed in sorted(set(speeds)):
        if speed > slowest * SAME_KIND:
            slowest, kind = speed, kind + 1
        kinds[speed] = kind
    return kinds


def _domains(cores: Iterable[Core], domains: Iterable[Cpus]) -> dict[int, int]:
    """Return the L3 domain of each CPU: the smallest OS index in it that is one of a core's."""
    available = {pu.os_index for core in cores for pu in core.pus}
    return {cpu: min(domain & available) for domain in domains for cpu in domain & available}


def distance_rows(nodes: Sequence[int], distances: Mapping[int, Mapping[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return a row of distances per NUMA node; none if a distance is missing."""
    rows = [[distances.get(node, {}).get(other) for other in nodes] for node in nodes]
    complete = tuple(tuple(cell for cell in row if cell is not None) for row in rows)
    return complete if all(len(row) == len(nodes) for row in complete) else ()


def with_locality_of(machine: Machine, other: Machine) -> Machine:
    """Return a machine with the kinds of cores and the distances of another description of it, if it has none."""
    other_cores = {core.pus[0]: core for core in other.cores}
    if not any(core.kind for core in machine.cores):
        kinds = (other_cores.get(core.pus[0], core).kind for core in machine.cores)
        machine = machine._replace(
            cores=tuple(core._replace(kind=kind) for core, kind in zip(machine.cores, kinds, strict=True))
        )
    if not machine.numa_distances and machine.numa_nodes == other.numa_nodes:
        machine = machine._replace(numa_distances=other.numa_distances)
    return machine
