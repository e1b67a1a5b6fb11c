"""Placement of the ranks of one host on its cores, GPUs and NICs."""

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from typing import NamedTuple

from ddlrun.errors import PlacementError
from ddlrun.machine import GPU, Core, Machine
from ddlrun.mapping.core_shares import (
    Cores,
    choose_groups,
    exact_shares,
    keep_first_packages,
    leave_out_reserved,
    span_groups,
)
from ddlrun.mapping.gpu_choice import choose_gpus
from ddlrun.mapping.near_cores import levels_of, share_packages
from ddlrun.mapping.policy import DEFAULT_POLICY, PlacementPolicy
from ddlrun.wording import counted


class LocalRankPlacement(NamedTuple):
    """The cores, GPU and OpenMP threads of a local rank; `nics` are its nearest RDMA devices, if not all are alike.

    `memory_nodes` are the NUMA nodes to which its memory is bound; none: the kernel decides.
    """

    local_rank: int
    cores: tuple[Core, ...]
    gpu: GPU | None
    threads: int
    nics: tuple[str, ...] = ()
    memory_nodes: tuple[int, ...] = ()


class _Share(NamedTuple):
    """A rank's own cores and GPU, and all cores that it may run on."""

    own: Cores
    gpu: GPU | None
    allowed: Cores


def place_local_ranks(
    machine: Machine, ranks: int, policy: PlacementPolicy = DEFAULT_POLICY
) -> tuple[LocalRankPlacement, ...]:
    """Divide a machine's usable cores among `ranks` local ranks.

    Each rank stays inside one package if there are at least as many ranks as packages, and inside one NUMA node
    if its package has at least as many ranks as nodes. A rank with a GPU gets cores of the GPU's package, first those
    of its L3 domain and its NUMA node, then of the nearest nodes without ranks. Shares are as equal as this allows.
    More ranks than cores may run on all cores. Where the policy has a number of cores per rank, these are cores that no
    other run has; if too few are left, ranks may run on all cores, too. A strict policy refuses both.

    Raises:
        PlacementError: the ranks do not fit; the text continues "but HOST".
    """
    if not machine.in_use or not policy.cores_per_rank:
        return _place_ranks(machine, ranks, policy)
    free = machine._replace(cores=tuple(core._replace(usable=_is_free(core, machine)) for core in machine.cores))
    try:
        return _place_ranks(free, ranks, policy)
    except PlacementError as error:
        shared = _place_ranks(machine, ranks, policy if policy.strict else policy.unbound())
        if policy.strict:
            reason = "other runs use the others (ddlrun runs lists yours)"
            raise PlacementError(*(f"{problem}; {reason}" for problem in error.problems)) from error
        return shared


def _is_free(core: Core, machine: Machine) -> bool:
    """Return True if ranks may use a core, and no other run has it."""
    return core.usable and machine.in_use.isdisjoint(pu.os_index for pu in core.pus)


def _place_ranks(machine: Machine, ranks: int, policy: PlacementPolicy) -> tuple[LocalRankPlacement, ...]:
    """Divide a machine's usable cores among local ranks. Raises PlacementError."""
    packages = leave_out_reserved(_usable_packages(machine, policy), policy.reserve_cores)
    usable = sum(map(len, packages))
    needed = ranks * (policy.cores_per_rank or 1)
    if not usable or (usable < needed and (policy.strict or policy.cores_per_rank)):
        raise PlacementError(_too_few_cores(usable, ranks, policy))
    if usable < ranks:
        policy = policy.unbound()
    gpus = choose_gpus(machine, ranks, policy)
    shares = _divide(machine, packages, gpus, policy)
    if policy.cores_per_rank:
        if min(map(len, shares)) < policy.cores_per_rank:
            shares = _divide_exactly(packages, gpus, policy.cores_per_rank)
        shares = [_cut_share(machine, share, gpu, policy) for share, gpu in zip(shares, gpus, strict=True)]
    every = [core for package in packages for core in package]
    return tuple(
        _place(local_rank, _Share(share, gpu, _allowed_cores(share, every, policy.bind)), machine, policy)
        for local_rank, (share, gpu) in enumerate(zip(shares, gpus, strict=True))
    )


def place_on_cores(
    machine: Machine, shares: Sequence[Cores], policy: PlacementPolicy
) -> tuple[LocalRankPlacement, ...]:
    """Place local ranks on the given cores."""
    gpus = choose_gpus(machine, len(shares), policy)
    return tuple(
        _place(local_rank, _Share(share, gpu, share), machine, policy)
        for local_rank, (share, gpu) in enumerate(zip(shares, gpus, strict=True))
    )


def spare_cores(
    machine: Machine, placements: Sequence[LocalRankPlacement], policy: PlacementPolicy
) -> tuple[list[Core], list[Core]]:
    """Return the usable cores that no rank has: the reserved ones, and the others."""
    used = {core.logical_index for placement in placements for core in placement.cores}
    packages = _usable_packages(machine, policy)
    unreserved = {core for package in leave_out_reserved(packages, policy.reserve_cores) for core in package}
    unused = [core for package in packages for core in package if core.logical_index not in used]
    free = [core for core in unused if _is_free(core, machine)]
    return [core for core in free if core not in unreserved], [core for core in free if core in unreserved]


def _usable_packages(machine: Machine, policy: PlacementPolicy) -> list[Cores]:
    """Return the cores that ranks may run on; of a hybrid machine, only those of the kinds that the policy takes."""
    usable = [[core for core in package if core.usable] for package in machine.packages]
    if policy.core_kinds == "all":
        return [*usable]
    fastest = max((core.kind for package in usable for core in package), default=0)
    return [[core for core in package if core.kind == fastest] for package in usable]


def _too_few_cores(usable: int, ranks: int, policy: PlacementPolicy) -> str:
    """Return the problem of too few cores and its remedy."""
    beyond = f" beyond the {policy.reserve_cores} reserved" if policy.reserve_cores else ""
    kind = " of the fastest kind" if policy.core_kinds == "fast" else ""
    cores, per_rank = f"has {counted(usable, 'usable core')}{kind}{beyond}", policy.cores_per_rank
    if not usable and not per_rank:
        return f"{cores}; reserve fewer"
    if not per_rank:
        return f"{cores}; use at most {counted(usable, 'rank')} per host"
    if usable < per_rank:
        return f"{cores}; make `--cores-per-rank` at most {usable}"
    fewer = f"--cores-per-rank at most {usable // ranks}" if usable >= ranks else "no --cores-per-rank"
    return f"{cores}, not {ranks} x {per_rank}; use at most {counted(usable // per_rank, 'rank')} per host, or {fewer}"


def _divide(
    machine: Machine, packages: Sequence[Cores], gpus: Sequence[GPU | None], policy: PlacementPolicy
) -> list[Cores]:
    """Return each rank's share of the cores: near its GPU if possible, else by packages."""
    near_gpus = _gpu_packages(packages, gpus, shared=sum(map(len, packages)) < len(gpus))
    if not near_gpus:
        if policy.packing == "pack":
            packages = keep_first_packages(packages, len(gpus) * (policy.cores_per_rank or 1))
        if len(gpus) < sum(map(bool, packages)):
            return span_groups(packages, len(gpus))
        near_gpus = _near_with_room(packages, gpus)
    return share_packages(packages, _choose_homes(packages, near_gpus, len(gpus)), gpus, levels_of(machine))


def _divide_exactly(packages: Sequence[Cores], gpus: Sequence[GPU | None], count: int) -> list[Cores]:
    """Return `count` cores for each rank, of one package if there are as many ranks as packages."""
    if len(gpus) < sum(map(bool, packages)):
        packages = [[core for package in packages for core in package]]
    rooms = [range(len(package) // count) for package in packages]
    if sum(map(len, rooms)) < len(gpus):
        most = next(size for size in range(count, 0, -1) if sum(len(cores) // size for cores in packages) >= len(gpus))
        raise PlacementError(
            f"can give no more than {counted(most, 'core')} to a rank inside one package; "
            f"make `--cores-per-rank` at most {most}"
        )
    near_gpus = (_gpu_packages(rooms, gpus) or _near_with_room(rooms, gpus)) if len(rooms) > 1 else {}
    nodes = [None if gpu is None else gpu.numa_node for gpu in gpus]
    return exact_shares(packages, _choose_homes(rooms, near_gpus, len(gpus)), nodes, count)


def _gpu_packages(packages: Sequence[Sized], gpus: Sequence[GPU | None], *, shared: bool = False) -> dict[int, int]:
    """Return the known packages of ranks' GPUs that have room; none if one has too little.

    Where cores are `shared`, a core is room enough.
    """
    known = {rank: gpu.package for rank, gpu in enumerate(gpus) if gpu is not None and gpu.package is not None}
    homes = {rank: package for rank, package in known.items() if packages[package]}
    counts = Counter(homes.values())
    room = all(len(packages[home]) >= (1 if shared else ranks) for home, ranks in counts.items())
    return homes if room else {}


def _near_with_room(packages: Sequence[Sized], gpus: Sequence[GPU | None]) -> dict[int, int]:
    """Return the known packages of ranks' GPUs, each for as many ranks as it takes where GPUs do not count."""
    room = Counter(choose_groups(packages, len(gpus)))
    near: dict[int, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu is not None and gpu.package is not None and room[gpu.package]:
            near[rank] = gpu.package
            room[gpu.package] -= 1
    return near


def _choose_homes(packages: Sequence[Sized], homes: Mapping[int, int], ranks: int) -> list[int]:
    """Return the package of each rank; `homes` has those that are known."""
    others = iter(choose_groups(packages, ranks - len(homes), [*homes.values()]))
    return [homes[rank] if rank in homes else next(others) for rank in range(ranks)]


def _cut_share(machine: Machine, share: Cores, gpu: GPU | None, policy: PlacementPolicy) -> Cores:
    """Return as many cores of a share as the policy asks for: the fastest first, then those nearest to the GPU."""
    count = policy.cores_per_rank or len(share)

    def preference(core: Core) -> tuple[int, bool, bool, int]:
        if gpu is None:
            return -core.kind, False, False, 0
        distance = machine.numa_distance(gpu.numa_node, core.numa_node) or 0
        return -core.kind, core.l3 != gpu.l3, core.numa_node != gpu.numa_node, distance

    return sorted(sorted(share, key=preference)[:count], key=lambda core: core.logical_index)


def _allowed_cores(share: Cores, every: Cores, bind: str) -> Cores:
    """Return the cores that a rank with this share may run on."""
    if bind == "none":
        return every
    if bind == "core":
        return share
    if bind == "package":
        packages = {core.package for core in share}
        return [core for core in every if core.package in packages]
    nodes = {(core.package, core.numa_node) for core in share}
    return [core for core in every if (core.package, core.numa_node) in nodes]


def _place(local_rank: int, share: _Share, machine: Machine, policy: PlacementPolicy) -> LocalRankPlacement:
    cores, threads, per_core = tuple(share.allowed), len(share.own), policy.threads_per_core
    if per_core:
        cores = tuple(core._replace(pus=core.pus[:per_core]) for core in cores)
        threads = sum(len(core.pus[:per_core]) for core in share.own)
    return LocalRankPlacement(
        local_rank=local_rank, cores=cores, gpu=share.gpu, threads=threads, nics=_near_nics(machine, share),
        memory_nodes=_memory_nodes(machine, share, policy),
    )  # fmt: skip


def _memory_nodes(machine: Machine, share: _Share, policy: PlacementPolicy) -> tuple[int, ...]:
    """Return the NUMA nodes for a rank's memory. Raises PlacementError if the policy names nodes that are unknown."""
    if policy.membind is None:
        return ()
    if not machine.measured:
        remedy = f"take a machine of ddlrun probe or lstopo, or leave `--membind` {policy.membind} out"
        raise PlacementError(f"is only described, so that its NUMA nodes are not known; {remedy}")
    gpu_nodes = {None if share.gpu is None else share.gpu.numa_node}
    nodes = gpu_nodes if policy.membind == "gpu" else {core.numa_node for core in share.allowed}
    if None in nodes:
        of = "its GPUs" if policy.membind == "gpu" else "its cores"
        raise PlacementError(f"does not report the NUMA nodes of {of}; leave `--membind` {policy.membind} out")
    return tuple(sorted(node for node in nodes if node is not None))


def _near_nics(machine: Machine, share: _Share) -> tuple[str, ...]:
    """Return the RDMA devices nearest to a rank; none if all are equally near."""
    packages = {core.package for core in share.own}
    package_of = {nic.rdma: nic.package for nic in machine.nics or () if nic.rdma}
    if share.gpu is not None:
        near: Sequence[str] = share.gpu.nics
    else:
        near = [name for name, package in package_of.items() if package in packages]
    names = tuple(name for name in package_of if name in near)
    return names if len(names) < len(package_of) else ()
