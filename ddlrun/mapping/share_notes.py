"""Notes on unequal shares: in number and kinds of cores, in distance from GPUs, and in memory."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ddlrun.errors import PlacementError
from ddlrun.machine import Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement, place_local_ranks
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.ranges import name_numbers, render_ranges
from ddlrun.wording import counted

# A largest share of at least this multiple of the smallest is noted.
NOTED_RATIO = 1.5

Bindings = Sequence[LocalRankPlacement]


def share_notes(machine: Machine, bindings: Bindings, policy: PlacementPolicy) -> Iterator[str]:
    """Yield the notes on the shares of one host's ranks."""
    yield from _unequal_shares(machine, bindings, policy)
    yield from _kinds(machine, bindings, policy)
    yield from _distant_nodes(bindings)
    yield from _memory(machine, bindings, policy)
    yield from _threads(machine, policy)


def _unequal_shares(machine: Machine, bindings: Bindings, policy: PlacementPolicy) -> Iterator[str]:
    """Yield a note where shares differ by half, with the ways to equal ones."""
    sizes = [len(binding.cores) for binding in bindings]
    if max(sizes) < min(sizes) * NOTED_RATIO or max(sizes) - min(sizes) <= 1:
        return
    if place_local_ranks(machine, len(bindings), policy) != tuple(bindings):
        return  # a rank file of the user's
    numbers = [str(ranks) for ranks in _equal_numbers(machine, len(bindings), policy)]
    also = f", or use {' or '.join(numbers)} ranks per host" if numbers else ""
    shares = f"local ranks have {min(sizes)} to {max(sizes)} cores, because ranks stay inside packages and NUMA nodes"
    yield f"{shares}; for equal shares, --cores-per-rank {min(sizes)}{also}"


def _equal_numbers(machine: Machine, ranks: int, policy: PlacementPolicy) -> list[int]:
    """Return the nearest smaller and larger numbers of ranks, 2 or more, whose shares differ by at most one core."""
    most = min(2 * ranks, len(machine.gpus) or 2 * ranks)
    smaller = next((number for number in range(ranks - 1, 1, -1) if _are_equal(machine, number, policy)), None)
    larger = next((number for number in range(ranks + 1, most + 1) if _are_equal(machine, number, policy)), None)
    return [number for number in (smaller, larger) if number is not None]


def _are_equal(machine: Machine, ranks: int, policy: PlacementPolicy) -> bool:
    try:
        sizes = [len(binding.cores) for binding in place_local_ranks(machine, ranks, policy)]
    except PlacementError:
        return False
    return max(sizes) - min(sizes) <= 1


def _kinds(machine: Machine, bindings: Bindings, policy: PlacementPolicy) -> Iterator[str]:
    """Yield a note on a hybrid machine: how many cores of each kind ranks have, and how many are idle."""
    fastest = max(core.kind for core in machine.cores)
    usable = {core for core in machine.cores if core.usable}
    if len({core.kind for core in usable}) < 2:
        return
    used = {core.logical_index for binding in bindings for core in binding.cores}
    idle = sum(core.logical_index not in used for core in usable if core.kind < fastest)
    if policy.core_kinds == "fast":
        yield f"{counted(idle, 'slow core')} are idle; --core-kinds all uses them"
        return
    shares = Counter(_kind_text(binding, fastest) for binding in bindings)
    listed = ", ".join(f"{counted(ranks, 'rank')} with {text}" for text, ranks in shares.items())
    idle_kinds = {core.kind for core in usable} - {core.kind for binding in bindings for core in binding.cores}
    rare = sum(core.kind in idle_kinds for core in usable)
    left = f"; {counted(rare, 'core')} idle, of kinds with fewer cores than ranks" if rare else ""
    yield f"cores of different speeds: {listed}{left}; --core-kinds fast uses the fastest kind alone"


def _kind_text(binding: LocalRankPlacement, fastest: int) -> str:
    fast = sum(core.kind == fastest for core in binding.cores)
    return f"{fast} fast and {len(binding.cores) - fast} slow"


def _distant_nodes(bindings: Bindings) -> Iterator[str]:
    """Yield a note for each rank without a core on the NUMA node of its GPU, though in its package."""
    for binding in bindings:
        gpu, nodes = binding.gpu, {core.numa_node for core in binding.cores}
        if gpu is None or gpu.numa_node is None or gpu.numa_node in nodes or None in nodes:
            continue
        if gpu.package in {core.package for core in binding.cores}:  # else the package is noted
            listed = render_ranges(node for node in nodes if node is not None)
            yield f"local rank {binding.local_rank} is on NUMA node {listed}, its GPU on NUMA node {gpu.numa_node}"


def _threads(machine: Machine, policy: PlacementPolicy) -> Iterator[str]:
    """Yield a note if no core has as many hardware threads as the policy asks for."""
    most = max(len(core.pus) for core in machine.cores)
    if policy.threads_per_core is not None and policy.threads_per_core > most:
        threads = counted(most, "hardware thread")
        yield f"a core has {threads}, so that --threads-per-core {policy.threads_per_core} is the same as {most}"


def _memory(machine: Machine, bindings: Bindings, policy: PlacementPolicy) -> Iterator[str]:
    """Yield a note if the first touch of memory does not determine its NUMA node."""
    if policy.membind is not None or machine.numa_domains < 2:
        return
    spanning = [binding.local_rank for binding in bindings if len({core.numa_node for core in binding.cores}) > 1]
    if spanning:
        yield (
            f"{name_numbers('local rank', spanning)}: cores on several NUMA nodes, so that memory is on the node of "
            "the core that touches it first; launch --membind binds it"
        )
