"""Choice of the GPU of each local rank."""

from collections.abc import Sequence

from ddlrun.errors import PlacementError
from ddlrun.machine import GPU, Machine
from ddlrun.mapping.policy import PlacementPolicy


def choose_gpus(machine: Machine, ranks: int, policy: PlacementPolicy) -> list[GPU | None]:
    """Return each rank's GPU.

    With fewer GPUs than ranks, no rank has one, or, if the policy lets ranks share GPUs, each GPU in turn. GPUs of
    other runs are used only if there are too few others.

    Raises PlacementError if --gpu-order has unknown numbers.
    """
    gpus = _ordered(machine, policy)
    free = [gpu for gpu in gpus if gpu.pci_address not in machine.in_use]
    if policy.gpu_order is None and len(free) >= ranks:
        gpus = free
    if ranks > len(gpus):
        if not gpus or not policy.share_gpus:
            return [None] * ranks
        return [gpus[rank % len(gpus)] for rank in range(ranks)]
    if policy.packing and all(gpu.package is not None for gpu in gpus):
        chosen = set(_spread(gpus, ranks) if policy.packing == "spread" else _pack(gpus, ranks))
        return [gpu for gpu in gpus if gpu in chosen]
    return [*gpus[:ranks]]


def _ordered(machine: Machine, policy: PlacementPolicy) -> list[GPU]:
    if policy.gpu_order is None:
        return list(machine.gpus)
    by_number = {gpu.number: gpu for gpu in machine.gpus}
    missing = [str(number) for number in policy.gpu_order if number not in by_number]
    if missing:
        present = f"its GPUs are {', '.join(map(str, by_number))}" if by_number else "it has none: leave the option out"
        raise PlacementError(f"has no GPU {', '.join(missing)} of `--gpu-order`; {present}")
    return [by_number[number] for number in policy.gpu_order]


def _spread(gpus: Sequence[GPU], ranks: int) -> list[GPU]:
    """Return GPUs of all packages in turn, and in a package of all NUMA nodes in turn."""
    nodes: dict[int | None, dict[int | None, int]] = {}  # package -> its nodes -> the number of their GPUs so far
    turns: dict[GPU, tuple[int, int]] = {}
    for gpu in gpus:
        counts = nodes.setdefault(gpu.package, {})
        turns[gpu] = (counts.setdefault(gpu.numa_node, 0), list(counts).index(gpu.numa_node))
        counts[gpu.numa_node] += 1
    return sorted(gpus, key=lambda gpu: turns[gpu])[:ranks]


def _pack(gpus: Sequence[GPU], ranks: int) -> list[GPU]:
    """Return GPUs of the smallest package that has enough, else of the largest packages."""
    packages = [gpu.package for gpu in gpus]
    sizes = {package: packages.count(package) for package in packages}
    return sorted(gpus, key=lambda gpu: (sizes[gpu.package] < ranks, abs(sizes[gpu.package] - ranks)))[:ranks]
