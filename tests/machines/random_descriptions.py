"""Descriptions of random machines in YAML, and what YAML has no keys for."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ddlrun.ranges import render_ranges
from tests.machines.random_shapes import Distances, Numbering, Shape, State

# As those of a GB10, and two of one kind.
CAPACITIES = (718, 1024, 731, 1017, 997)

Thread = tuple[int, int]
"""The numbers of a core in a shape, and of a thread in the core."""


def cpu_numbers(shape: Shape) -> dict[Thread, int]:
    """Return the OS index of each thread."""
    inside: dict[int, list[int]] = {}
    for number, core in enumerate(shape.cores):
        inside.setdefault(core.package, []).append(number)
    turn = {number: (index, package) for package, cores in inside.items() for index, number in enumerate(cores)}
    threads = [(number, thread) for number, core in enumerate(shape.cores) for thread in range(len(core.threads))]
    keys: dict[Numbering, Callable[[Thread], tuple[object, ...]]] = {
        Numbering.BLOCK: lambda key: key,
        Numbering.THREADS_LAST: lambda key: (key[1], key[0]),
        Numbering.INTERLEAVED: lambda key: (key[1], *turn[key[0]]),
        Numbering.INTERLEAVED_CORES: lambda key: (*turn[key[0]], key[1]),
        Numbering.SHUFFLED: lambda key: (hash((key[0] * 7919 + key[1] * 104729) * 2654435761 % 1000003), key),
    }
    ordered = sorted(threads, key=keys[shape.numbering])
    return {thread: index for index, thread in enumerate(ordered)}


def describe(shape: Shape, about: str) -> str:
    """Return the machine's description in YAML."""
    return "".join(f"{line}\n" for line in _lines(shape, about))


def options(shape: Shape) -> str:
    """Return what a description in YAML has no keys for."""
    fields = {
        "cgroup": shape.cgroup.value,
        "without": " ".join(sorted(shape.without)),
        "affinity": render_ranges(affinity(shape) or ()),
        "dies": " ".join(map(render_ranges, dies(shape))) if shape.has_dies else "",
        "cpuset": shape.cpuset if shape.cpuset != "/" else "",
        "caches": "from index 0" if shape.cache_indexes else "",
    }
    return "; ".join(f"{key} {value}" for key, value in fields.items() if value and value != "2") or "none"


def _lines(shape: Shape, about: str) -> Iterator[str]:
    numbers = cpu_numbers(shape)
    cores = [
        [numbers[core, thread] for thread in range(len(shape.cores[core].threads))] for core in range(len(shape.cores))
    ]

    def cpus(numbers_of_cores: Iterable[int]) -> str:
        return render_ranges(cpu for core in numbers_of_cores for cpu in cores[core])

    def groups(field: str) -> dict[int, str]:
        return {value: cpus(members) for value, members in _members(shape, field).items()}

    yield f"about: {about}"
    if shape.has_packages:
        packages = (f'{package * shape.package_step}: "{text}"' for package, text in groups("package").items())
        yield f"packages: {{{', '.join(packages)}}}"
    yield f'cores: "{" ".join(map(render_ranges, cores))}"'
    if shape.modules:
        modules = (cpus(pair) for members in _members(shape, "package").values() for pair in _chunks(members, 2))
        yield f'modules: "{" ".join(modules)}"'
    if shape.has_nodes:
        yield from _node_lines(shape, groups("node"), next(iter(groups("package").values())))
    l1 = [
        render_ranges(cpus[part :: core.l1])
        for cpus, core in zip(cores, shape.cores, strict=True)
        for part in range(core.l1)
    ]
    caches = {1: l1, 2: [cpus(members) for members in _inside_packages(shape, shape.l2)], 3: groups("l3").values()}
    yield from _cache_lines(caches if shape.has_l3 else {**caches, 3: ()})
    clusters = [cpus(members) for members in _inside_packages(shape, shape.cluster)]
    books = [cpus(itertools.chain(*chunk)) for chunk in _chunks([*_members(shape, "package").values()], shape.book)]
    if clusters or books:
        yield f'groups: "{" ".join(dict.fromkeys([*clusters, *books]))}"'
    for key, state in (("offline", State.OFFLINE), ("forbidden", State.FORBIDDEN)):
        text = render_ranges(
            cpu for (core, thread), cpu in numbers.items() if shape.cores[core].threads[thread] is state
        )
        if text:
            yield f'{key}: "{text}"'
    yield from _device_lines(shape, groups("node"))
    if shape.capacities:
        kinds = {
            capacity: cpus(range(place, len(cores), shape.capacities))
            for place, capacity in enumerate(CAPACITIES[: shape.capacities])
        }
        yield f"kinds: {{{', '.join(f'{kind}: {chr(34)}{text}{chr(34)}' for kind, text in kinds.items() if text)}}}"


def _members(shape: Shape, field: str) -> dict[int, list[int]]:
    """Return the numbers of the cores with each value of a field."""
    members: dict[int, list[int]] = {}
    for number, core in enumerate(shape.cores):
        members.setdefault(getattr(core, field), []).append(number)
    return members


def _inside_packages(shape: Shape, size: int) -> Iterator[Sequence[int]]:
    """Yield groups of `size` neighbouring cores of a package, in the same die, node and L3 cache."""
    inside: dict[tuple[int, ...], list[int]] = {}
    for number, core in enumerate(shape.cores):
        inside.setdefault((core.package, core.die, core.node, core.l3), []).append(number)
    for cores in inside.values():
        yield from _chunks(cores, size)


T = TypeVar("T")


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield groups of `size` items; none if it is 0."""
    yield from (items[first : first + size] for first in range(0, len(items), size or 1) if size)


def _node_lines(shape: Shape, nodes: Mapping[int, str], first_package: str) -> Iterator[str]:
    indexes = {node: place * shape.node_step for place, node in enumerate(nodes)}
    rows = [f'{indexes[node]}: "{text}"' for node, text in nodes.items()]
    rows += [f'200: "{first_package}"'] if shape.overlapping_node else []
    rows += [f'{250 + index}: ""' for index in range(shape.memory_nodes)]
    yield f"nodes: {{{', '.join(rows)}}}"
    yield "memory: 1024"
    if shape.distances is not Distances.EQUAL and len(rows) > 1:
        yield f"distances: [{', '.join(_distance_rows(shape.distances, len(rows)))}]"
    if shape.forbidden_nodes:
        yield f'forbidden_nodes: "{render_ranges(indexes[node] for node in shape.forbidden_nodes)}"'


def _distance_rows(kind: Distances, nodes: int) -> Iterator[str]:
    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        if kind is Distances.CHAINS:
            low, high = sorted((one, other))
            return (11, 12, 16, 20, 20)[(low * 7919 + high * 104729 + low * high * 31) * 2654435761 % 1000003 % 5]
        if kind is Distances.RANDOM:
            return 12 + (one * 7 + other * 7 + one * other * 5) % 4 * 4
        near = one // 2 == other // 2
        return 12 if near else 16 if kind is Distances.FOURS and one // 4 == other // 4 else 22

    yield from (" ".join(str(distance(one, other)) for other in range(nodes)) for one in range(nodes))


def _cache_lines(caches: Mapping[int, Iterable[str]]) -> Iterator[str]:
    texts = {level: " ".join(filter(None, sets)) for level, sets in caches.items()}
    if any(texts.values()):
        filled = (f'{level}: "{text}"' for level, text in texts.items() if text)
        yield f"caches: {{{', '.join(filled)}}}"


def _device_lines(shape: Shape, nodes: Mapping[int, str]) -> Iterator[str]:
    devices = [(node, "nvidia") for node in shape.gpus]
    devices += [(node, f"net eth{number}") for number, node in enumerate(shape.nics)]
    if devices:
        yield "devices:"
    for place in dict.fromkeys(node for node, _ in devices):
        yield "  machine:" if place is None else f"  cpus {nodes[place]}:"
        for index, (node, words) in enumerate(devices):
            if node == place:
                bus = 0x10 + index * 0x10
                yield f"    pci0000:{bus:02x}/0000:{bus:02x}:00.0/0000:{bus + 1:02x}:00.0: {words}"


def dies(shape: Shape) -> list[frozenset[int]]:
    """Return the CPUs of each die."""
    numbers = cpu_numbers(shape)
    members = _members(shape, "die").values()
    return [frozenset(cpu for (core, _), cpu in numbers.items() if core in cores) for cores in members]


def affinity(shape: Shape) -> frozenset[int] | None:
    """Return the CPUs that the process may run on; None: all that are allowed."""
    numbers = cpu_numbers(shape)
    states = {number: shape.cores[core].threads[thread] for (core, thread), number in numbers.items()}
    if State.OUTSIDE_AFFINITY not in states.values():
        return None
    return frozenset(number for number, state in states.items() if state is State.FREE)
