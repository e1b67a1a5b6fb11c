"""Random machines: their shapes, which are easy to reduce."""

import random
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple


class State(Enum):
    """The state of a hardware thread, and the letter that stands for it."""

    FREE = "."
    OFFLINE = "o"
    FORBIDDEN = "x"
    OUTSIDE_AFFINITY = "a"


class CoreShape(NamedTuple):
    """A core: numbers of the package, NUMA node, die and L3 cache around it, and the states of its threads.

    `l1` is the number of its L1 caches: its own, or one per group of threads as on POWER9.
    """

    package: int
    node: int
    die: int
    l3: int
    threads: tuple[State, ...]
    l1: int = 0


class Numbering(Enum):
    """Orders in which firmware numbers hardware threads."""

    BLOCK = "core by core"
    THREADS_LAST = "first threads of all cores, then second threads"
    INTERLEAVED = "package by package in turn, second threads last"
    INTERLEAVED_CORES = "package by package in turn, core by core"
    SHUFFLED = "no order"


class Cgroup(Enum):
    """Kinds of mounts of cpusets."""

    VERSION_2 = "2"
    VERSION_1 = "1"
    CPUSET = "cpuset"


class Distances(Enum):
    """Kinds of distances between NUMA nodes."""

    EQUAL = "equal"
    PAIRS = "pairs are near"
    FOURS = "four are near, of which pairs are nearer"
    RANDOM = "any"
    CHAINS = "few different ones, without a pattern"


class Shape(NamedTuple):
    """A machine's shape.

    `package_step` and `node_step` are the distances between OS indexes. `memory_nodes` have no CPUs, the
    `overlapping_node` has those of the first package. `l2`, `cluster`
    and `book` are the numbers of cores per L2 cache and cluster, and of packages per book; 0: there are none. `modules`
    are AMD's, of two cores each. `gpus` and `nics` have the node, or None, of each device. `cpuset` is the
    cpuset's path below its mount. `without` has patterns of files that some kernels lack. `cache_indexes` are the
    numbers of the folders of caches: their levels, or from 0 on. `capacities` is the number of different ones.
    """

    cores: tuple[CoreShape, ...]
    numbering: Numbering = Numbering.BLOCK
    package_step: int = 1
    node_step: int = 1
    has_nodes: bool = True
    has_packages: bool = True
    has_l3: bool = True
    has_dies: bool = False
    modules: bool = False
    l2: int = 0
    cluster: int = 0
    book: int = 0
    memory_nodes: int = 0
    overlapping_node: bool = False
    distances: Distances = Distances.EQUAL
    forbidden_nodes: frozenset[int] = frozenset()
    gpus: tuple[int | None, ...] = ()
    nics: tuple[int | None, ...] = ()
    cache_indexes: bool = False
    capacities: int = 0
    cgroup: Cgroup = Cgroup.VERSION_2
    cpuset: str = "/"
    without: frozenset[str] = frozenset()


def is_valid(shape: Shape) -> bool:
    """Check if a shape is that of a machine on which something can run."""
    if not shape.cores or not all(core.threads for core in shape.cores):
        return False
    states = {state for core in shape.cores for state in core.threads}
    online = {core.node for core in shape.cores if {*core.threads} != {State.OFFLINE}}
    return State.FREE in states and bool(online - shape.forbidden_nodes)


# Files that some kernels do not have: those of cores, those of packages, all lists, the CPUs near a device.
LEFT_OUT = (
    "sys/devices/system/cpu/cpu*/topology/*",
    "sys/devices/system/cpu/cpu*/topology/core_siblings*",
    "sys/devices/system/**/*_list",
    "sys/devices/pci*/**/local_cpulist",
)


def random_shape(seed: int) -> Shape:
    """Return the shape of machine number `seed`."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    shape = Shape(
        cores=tuple(_cores(rng)),
        numbering=rng.choices(list(Numbering), [4, 4, 4, 2, 1])[0],
        package_step=rng.choices([1, 2, 8], [6, 1, 1])[0],
        node_step=rng.choices([1, 8], [5, 1])[0],
        has_nodes=rng.random() < 0.9,
        has_packages=rng.random() < 0.95,
        has_l3=rng.random() < 0.8,
        has_dies=rng.random() < 0.3,
        l2=rng.choices([0, 1, 2], [6, 3, 1])[0],
        cluster=rng.choices([0, 2, 4], [8, 1, 1])[0],
        book=rng.choices([0, 2], [15, 1])[0],
        memory_nodes=rng.choices([0, 1, 3], [8, 1, 1])[0],
        overlapping_node=rng.random() < 0.03,
        distances=rng.choices(list(Distances), [6, 1, 1, 1, 2])[0],
        cgroup=rng.choices(list(Cgroup), [4, 3, 1])[0],
        cpuset=rng.choices(["/", "/job/step"], [4, 1])[0],
        without=frozenset(name for name in LEFT_OUT if rng.random() < 0.05),
    )
    threads = {len(core.threads) for core in shape.cores}
    shape = shape._replace(
        modules=threads == {1} and not shape.book and rng.random() < 0.1,
        overlapping_node=shape.overlapping_node and shape.distances is Distances.EQUAL,
        gpus=tuple(_devices(rng, shape, [0, 0, 1, 2, 4, 4, 8])),
        nics=tuple(_devices(rng, shape, [0, 0, 0, 1, 2])),
        cache_indexes=rng.random() < 0.3,
        capacities=rng.choices([0, 2, 5], [8, 1, 1])[0],
        cores=tuple(_restricted(rng, shape.cores)),
    )
    if rng.random() < 0.3:
        shape = shape._replace(forbidden_nodes=frozenset(_forbidden_nodes(rng, shape)))
    return shape if is_valid(shape) else random_shape(seed + (1 << 32))


def _devices(rng: random.Random, shape: Shape, numbers: Sequence[int]) -> Iterator[int | None]:
    nodes = sorted({core.node for core in shape.cores})
    anywhere = rng.random() < 0.3
    for _ in range(rng.choice(numbers)):
        yield None if not shape.has_nodes or (anywhere and rng.random() < 0.3) else rng.choice(nodes)


def _cores(rng: random.Random) -> Iterator[CoreShape]:
    """Yield the cores of packages that are alike, or differ in size or threads."""
    packages = rng.choices([1, 2, 3, 4, 6, 8], [5, 8, 2, 4, 1, 1])[0]
    most = max(2, 24 // packages)
    size, threads = rng.randint(1, min(8, most)), rng.choices([1, 2, 4, 8], [5, 5, 2, 1])[0]
    uneven, mixed = rng.random() < 0.15, rng.random() < 0.15
    nodes, dies = rng.choices([1, 2, 4], [6, 2, 1])[0], rng.choices([1, 2], [3, 1])[0]
    per_l3 = rng.choices([size, 1, 2, 3, 4], [5, 1, 2, 1, 1])[0]
    spanned = rng.choices([1, 2, packages], [8, 1, 1])[0]  # packages per node
    alone = rng.choice([0, 0, 0, packages // 2])  # packages before those, with nodes of their own
    l1, mixed_l1 = rng.choice([0, 0, 1, 2]), rng.random() < 0.3
    interleaved_nodes, l3_over_nodes = rng.random() < 0.1, per_l3 == size
    for package in range(packages):
        count = rng.randint(1, min(8, most)) if uneven else size
        l3s, spanning = -(-count // per_l3), 1 if package < alone else spanned
        per_node = max(1, -(-count // nodes)) if spanning == 1 else count
        for index in range(count):
            inside = index % nodes if interleaved_nodes and spanning == 1 else index // per_node
            in_node = index // nodes if interleaved_nodes else index % per_node
            l3 = index // per_l3 if l3_over_nodes or nodes == 1 or spanning > 1 else inside * 8 + in_node // per_l3
            yield CoreShape(
                package=package,
                node=package * 4 + inside if spanning == 1 else 100 + package // spanning,
                die=package * 8 + (inside // max(1, nodes // dies) if nodes > 1 else l3 * dies // l3s),
                l3=package * 32 + l3,
                threads=(State.FREE,) * (rng.choice([1, threads, 2]) if mixed else threads),
                l1=rng.choice([0, l1]) if mixed_l1 else l1,
            )


def _restricted(rng: random.Random, cores: Sequence[CoreShape]) -> Iterator[CoreShape]:
    """Yield cores of which some threads are offline, forbidden by a cpuset, or outside the affinity."""
    patterns = [_restriction(rng, cores, state) for state in list(State)[1:] if rng.random() < 0.25]
    for number, core in enumerate(cores):
        states = list(core.threads)
        for state, chosen in patterns:
            states = [state if chosen(number, thread) else before for thread, before in enumerate(states)]
        yield core._replace(threads=tuple(states))


def _restriction(
    rng: random.Random, cores: Sequence[CoreShape], state: State
) -> tuple[State, Callable[[int, int], bool]]:
    """Return a state and the threads, by numbers of core and thread, that have it."""
    whole = {core for core in range(len(cores)) if rng.random() < 0.4}
    single = {(core, thread) for core in range(len(cores)) for thread in range(8) if rng.random() < 0.3}
    packages = {core.package for core in cores if rng.random() < 0.2}
    choice = rng.randrange(6)
    rules: list[Callable[[int, int], bool]] = [
        lambda core, _: core in whole,
        lambda core, thread: (core, thread) in single,
        lambda core, _: cores[core].package in packages,
        lambda core, thread: core == 0 and thread == 0,
        lambda _, thread: thread > 0,
        lambda core, _: core < len(cores) // 2,
    ]
    return state, rules[choice]


def _forbidden_nodes(rng: random.Random, shape: Shape) -> Iterator[int]:
    """Yield the nodes whose memory a cpuset forbids: those without a usable CPU, or any."""
    nodes = sorted({core.node for core in shape.cores})
    any_node = rng.random() < 0.3
    for node in nodes:
        states = {state for core in shape.cores if core.node == node for state in core.threads}
        if State.FREE not in states if not any_node else rng.random() < 0.3:
            yield node
