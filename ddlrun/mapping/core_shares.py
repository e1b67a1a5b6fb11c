"""Division of a machine's cores among its local ranks."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

from ddlrun.machine import GPU, Core

Cores = Sequence[Core]


def leave_out_reserved(packages: Sequence[Cores], count: int) -> list[Cores]:
    """Return packages without `count` cores, which are left to interrupts and system services.

    These are the first core of each NUMA node, then the second of each, and so on.
    """
    if not count:
        return [*packages]
    nodes: dict[tuple[int, int | None], list[Core]] = {}
    for package in packages:
        for core in package:
            nodes.setdefault((core.package, core.numa_node), []).append(core)
    in_turn = [core for turn in zip_longest(*nodes.values()) for core in turn if core is not None]
    reserved = set(in_turn[:count])
    return [[core for core in package if core not in reserved] for package in packages]


def keep_first_packages(packages: Sequence[Cores], needed: int) -> list[Cores]:
    """Return the first packages that together have `needed` cores; the others become empty."""
    first_packages: list[Cores] = []
    for package in packages:
        first_packages.append(package if sum(map(len, first_packages)) < needed else [])
    return first_packages


def choose_groups(groups: Sequence[Cores], ranks: int) -> list[int]:
    """Return the group (package or NUMA node) of each rank, in ascending order, that makes the smallest share largest.

    >>> choose_groups([range(10), range(10)], 3)
    [0, 0, 1]
    """
    homes: list[int] = []
    for _ in range(ranks):
        homes.append(max(range(len(groups)), key=lambda index: len(groups[index]) / (homes.count(index) + 1)))
    return sorted(homes)


def share_packages(packages: Sequence[Cores], homes: Sequence[int], gpus: Sequence[GPU | None]) -> list[Cores]:
    """Divide each package's cores among its ranks, NUMA node by NUMA node.

    `homes` and `gpus` have the package and the GPU of each rank.
    """
    shares: list[Cores] = [()] * len(homes)
    for package, cores in enumerate(packages):
        ranks = [rank for rank, home in enumerate(homes) if home == package]
        if ranks:
            blocks = _match(_blocks(cores, len(ranks)), [gpus[rank] for rank in ranks])
            for rank, block in zip(ranks, blocks, strict=True):
                shares[rank] = block
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


def _blocks(cores: Cores, ranks: int) -> list[Cores]:
    """Cut a package's cores into one block per rank, each inside one NUMA node where there are enough ranks."""
    nodes: dict[int | None, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.numa_node, []).append(core)
    parts = list(nodes.values())
    if ranks < len(parts):
        return span_groups(parts, ranks)
    homes = choose_groups(parts, ranks)
    return [block for index, part in enumerate(parts) for block in _cut(part, homes.count(index))]


def _cut(cores: Cores, ranks: int) -> Iterator[Cores]:
    """Yield one block per rank, which differ by at most one core; more ranks than cores share them."""
    if ranks > len(cores):
        yield from ([cores[rank * len(cores) // ranks]] for rank in range(ranks))
    elif ranks:
        size, larger = divmod(len(cores), ranks)
        ends = [size * rank + min(rank, larger) for rank in range(ranks + 1)]
        yield from (cores[low:high] for low, high in pairwise(ends))


def _match(blocks: Sequence[Cores], gpus: Sequence[GPU | None]) -> list[Cores]:
    """Return each rank's block: one on its GPU's NUMA node while there is one, then the nearest that is left."""
    nodes = [{core.numa_node for core in block} for block in blocks]
    gpu_nodes = [None if gpu is None else gpu.numa_node for gpu in gpus]
    left = list(range(len(blocks)))
    block_of: dict[int, int] = {}
    for rank, node in enumerate(gpu_nodes):
        near = next((index for index in left if node in nodes[index]), None)
        if node is not None and near is not None:
            block_of[rank] = near
            left.remove(near)
    for rank, node in enumerate(gpu_nodes):
        if rank not in block_of:
            centre = next((index for index, inside in enumerate(nodes) if node in inside), 0)
            block_of[rank] = min(left, key=lambda index: abs(index - centre))
            left.remove(block_of[rank])
    return [blocks[block_of[rank]] for rank in range(len(gpus))]
