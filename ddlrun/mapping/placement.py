"""Where every rank goes: Topology x hosts x machines -> Placement."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.machine import GPU, Core, Machine
from ddlrun.topology import RankOrder, Topology, describe


class PlacementPolicy(NamedTuple):
    """How the user wants ranks placed.

    `reserve_cores`: cores a host that are left to the system. `cores_per_rank`: exactly so many, None: an
    equal share. `bind`: what a rank may run on: its own cores, or all of the NUMA nodes, the packages
    or the host (none) that they are in. `packing`: spread over packages, or pack on as few as will do;
    None: spread, but GPUs in their order. `threads_per_core`: PUs of a core that a rank uses, None: all,
    with one OpenMP thread. `gpu_order`: numbers of GPUs in the order of local ranks. `overload`: more
    ranks than cores may share them. `share_gpus`: more ranks than GPUs take them in turn.
    """

    reserve_cores: int = 0
    cores_per_rank: int | None = None
    bind: str = "core"
    packing: str | None = None
    threads_per_core: int | None = None
    gpu_order: tuple[int, ...] | None = None
    overload: bool = False
    share_gpus: bool = False


BINDINGS = ("core", "numa", "package", "none")


class LocalRankPlacement(NamedTuple):
    """What one local rank gets on a machine. `nics` are RDMA devices, where some are nearer than others."""

    local_rank: int
    cores: tuple[Core, ...]
    gpu: GPU | None
    threads: int
    nics: tuple[str, ...] = ()


class PlacedRank(NamedTuple):
    """One rank, its host, its coordinates (x, y, z[, a]) and its seat."""

    rank: int
    host: Host
    coords: tuple[int, ...]
    seat: LocalRankPlacement


class Placement(NamedTuple):
    """Every rank's place. Hosts with equal machines share their seats: it grows with hosts alone."""

    topology: Topology
    order: RankOrder
    hosts: HostList
    machines: tuple[Machine, ...]
    seats: tuple[tuple[LocalRankPlacement, ...], ...]
    policy: PlacementPolicy = PlacementPolicy()

    def by_host(self) -> Iterator[PlacedRank]:
        """Yield all ranks, host after host, rank 0 first."""
        for index, host in enumerate(self.hosts):
            stride, offset = self.topology.rank_line(index, self.order)
            coords = self.topology.host_coords(index)
            for seat in self.seats[index]:
                yield PlacedRank(offset + stride * seat.local_rank, host, (seat.local_rank, *coords), seat)

    @property
    def shares_cores(self) -> bool:
        """Whether two ranks may run on the same core."""
        return any(
            len({core.logical_index for seat in seats for core in seat.cores}) < sum(len(seat.cores) for seat in seats)
            for _, _, seats in self.groups()
        )

    def groups(self) -> list[tuple[list[int], Machine, tuple[LocalRankPlacement, ...]]]:
        """Return hosts that look the same together: (host indexes, machine, seats)."""
        found: dict[int, tuple[list[int], Machine, tuple[LocalRankPlacement, ...]]] = {}
        for index, (machine, seats) in enumerate(zip(self.machines, self.seats, strict=True)):
            found.setdefault(id(seats), ([], machine, seats))[0].append(index)
        return list(found.values())


def place(
    topology: Topology,
    hosts: HostList,
    machines: Mapping[str, Machine],
    order: RankOrder,
    policy: PlacementPolicy = PlacementPolicy(),  # noqa: B008 - a value
) -> Placement:
    """Place every rank.

    `machines` maps each host's name to its machine; equal hosts share one object. Raises InputError
    where the number of hosts or slots does not fit the topology, PlacementError where the ranks do
    not fit on a machine.
    """
    check_hosts(topology, hosts)
    # One look a machine, not a host: hosts that are alike come with the same Machine object.
    chosen = [machines[name] for name in hosts.names]
    alike: dict[int, list[str]] = {}
    for name, machine in zip(hosts.names, chosen, strict=True):
        alike.setdefault(id(machine), []).append(name)
    kinds = {id(machine): machine for machine in chosen}
    seats: dict[int, tuple[LocalRankPlacement, ...]] = {}
    problems = []
    for key, kind in kinds.items():
        try:
            seats[key] = seat_ranks(kind, topology.accelerators, policy)
        except PlacementError as error:
            problems += [
                f"topology {topology} puts {topology.accelerators} ranks on each host, but {_few(alike[key])} "
                f"{problem} ({kind}; {kind.source})"
                for problem in error.problems
            ]
    if problems:
        raise PlacementError(*problems)
    return Placement(topology, order, hosts, tuple(chosen), tuple(seats[id(machine)] for machine in chosen), policy)


def check_hosts(topology: Topology, hosts: HostList) -> None:
    """Raise InputError where the number of hosts, or the slots of any, do not fit the topology."""
    if len(hosts) != topology.hosts:
        needed = f"{topology.hosts} host{'s' * (topology.hosts > 1)} ({describe(topology.dims[1:], 1)})"
        there = f"{len(hosts)} {'is' if len(hosts) == 1 else 'are'} there ({hosts.source}: {_few(hosts.names)})"
        raise InputError(f"topology {topology} needs {needed}, but {there}{_fitting(topology, hosts)}")
    ranks = topology.accelerators
    slots = [host.slots for host in hosts if host.slots is not None]
    short = [host for host in hosts if host.slots is not None and host.slots < ranks]
    if short:
        fits = Topology((min(slots), *topology.dims[1:]))
        alike: dict[int | None, list[str]] = {}
        for host in short:
            alike.setdefault(host.slots, []).append(host.name)
        what = f"topology {topology} puts {ranks} rank{'s' * (ranks > 1)} on each host, but"
        raise InputError(
            *(
                f"{what} {fold(names)} offer{'s' * (len(names) == 1)} {count} slot{'s' * (count != 1)} "
                f"({hosts.source}); {fits} would fit"
                for count, names in alike.items()
            )
        )


def _fitting(topology: Topology, hosts: HostList) -> str:
    """Name the largest topology of the same kind that fewer hosts have room for."""
    per_rack = min(topology.dims[1], len(hosts))
    racks = min(math.prod(topology.dims[2:]), len(hosts) // per_rack)
    return f"; {Topology((topology.accelerators, per_rack, racks))} would fit" if len(hosts) < topology.hosts else ""


def _few(names: Sequence[str]) -> str:
    return fold(names) if len(names) <= 64 else f"{names[0]} ... {names[-1]}"


def seat_ranks(
    machine: Machine,
    ranks: int,
    policy: PlacementPolicy = PlacementPolicy(),  # noqa: B008 - a value
) -> tuple[LocalRankPlacement, ...]:
    """Share a machine's usable cores among `ranks` local ranks.

    Each rank stays inside one package where there are at least as many ranks as packages, and inside one
    NUMA node where a package has at least as many ranks as nodes; a rank with a GPU goes to the package
    that its GPU hangs on, and to its NUMA node while that has room (as hwloc_distrib divides a tree, and
    mpibind puts GPUs first). Raises PlacementError, to be read after "but HOST", where they do not fit.
    """
    packages = [[core for core in package if core.usable] for package in machine.packages]
    packages = _without_reserved(packages, policy.reserve_cores)
    usable = sum(map(len, packages))
    wanted = ranks * (policy.cores_per_rank or 1)
    if not usable or (usable < wanted and not policy.overload):
        raise PlacementError(_crowded(usable, ranks, policy))
    gpus = _choose_gpus(machine, ranks, policy)
    homes = _gpu_homes(gpus, packages, overload=policy.overload)
    if policy.packing == "pack" and homes is None:
        packages = _packed(packages, wanted)
    if homes is None and ranks < sum(map(bool, packages)):
        shares = _span(packages, ranks)
    else:
        shares = _share(packages, homes or _homes(packages, ranks), gpus)
    if policy.cores_per_rank:
        shares = [_cut(share, gpu, policy) for share, gpu in zip(shares, gpus, strict=True)]
    every = [core for package in packages for core in package]
    return tuple(
        _seat(local_rank, share, gpu, machine, _widened(share, every, policy.bind), policy)
        for local_rank, (share, gpu) in enumerate(zip(shares, gpus, strict=True))
    )


def spare_cores(
    machine: Machine, seats: Sequence[LocalRankPlacement], policy: PlacementPolicy
) -> tuple[list[Core], list[Core]]:
    """Return the usable cores that no rank has: those that were reserved, and others."""
    taken = {core.logical_index for seat in seats for core in seat.cores}
    packages = [[core for core in package if core.usable] for package in machine.packages]
    shared = {core for package in _without_reserved(packages, policy.reserve_cores) for core in package}
    free = [core for package in packages for core in package if core.logical_index not in taken]
    return [core for core in free if core not in shared], [core for core in free if core in shared]


def place_cores(
    topology: Topology,
    hosts: HostList,
    machines: Mapping[str, Machine],
    order: RankOrder,
    cores: Mapping[int, Sequence[Core]],
    policy: PlacementPolicy = PlacementPolicy(),  # noqa: B008 - a value
) -> Placement:
    """Return the placement that gives each rank the `cores` that somebody else chose for it.

    Hosts that look the same share their seats. Raises InputError where the hosts do not fit the topology.
    """
    check_hosts(topology, hosts)
    known: dict[tuple[int, tuple[tuple[Core, ...], ...]], tuple[LocalRankPlacement, ...]] = {}
    seats = []
    for index, name in enumerate(hosts.names):
        machine = machines[name]
        local = range(topology.accelerators)
        shares = tuple(tuple(cores[topology.rank(index, local_rank, order)]) for local_rank in local)
        gpus = _choose_gpus(machine, len(shares), policy)
        made = tuple(
            _seat(local_rank, share, gpu, machine, share, policy)
            for local_rank, (share, gpu) in enumerate(zip(shares, gpus, strict=True))
        )
        seats.append(known.setdefault((id(machine), shares), made))
    return Placement(topology, order, hosts, tuple(machines[name] for name in hosts.names), tuple(seats), policy)


def placement_notes(placement: Placement) -> list[str]:
    """Say what a user may not expect of a placement: idle packages, GPUs without a rank, shared cores."""
    found: list[str] = []
    for indexes, machine, seats in placement.groups():
        notes = [*machine.notes, *_seat_notes(machine, seats)]
        names = fold(placement.hosts.names[index] for index in indexes) if notes else ""
        found += (f"{names}: {note}" for note in notes)
    return found


def _seat_notes(machine: Machine, seats: Sequence[LocalRankPlacement]) -> Iterator[str]:
    for seat in seats:
        at = {core.package for core in seat.cores}
        if seat.gpu is not None and seat.gpu.package is not None and seat.gpu.package not in at:
            where = ",".join(map(str, sorted(at)))
            yield f"local rank {seat.local_rank} is on package {where}, its GPU hangs on {seat.gpu.package}"
    busy = {core.package for seat in seats for core in seat.cores}
    for package, cores in enumerate(machine.packages):
        if package not in busy and any(core.usable for core in cores):
            why = "the GPUs in use hang elsewhere; see --spread" if seats[0].gpu else "the ranks fit without it"
            yield f"package {package} has no rank ({why})"
    if machine.gpus and seats[0].gpu is None:
        yield f"{len(seats)} ranks, {len(machine.gpus)} GPUs: no rank is tied to one"
    elif machine.gpus and len({seat.gpu for seat in seats}) < len(seats):
        yield f"{len(seats)} ranks share {len({seat.gpu for seat in seats})} of {len(machine.gpus)} GPUs"
    elif len(seats) < len(machine.gpus):
        used = ",".join(str(seat.gpu.number) for seat in seats if seat.gpu)
        yield f"{len(seats)} of {len(machine.gpus)} GPUs are used: {used}"


def _crowded(usable: int, ranks: int, policy: PlacementPolicy) -> str:
    kept = f" beyond the {policy.reserve_cores} reserved" if policy.reserve_cores else ""
    if not policy.cores_per_rank or usable < policy.cores_per_rank:
        most = usable // (policy.cores_per_rank or 1)
        remedy = f"make X at most {most}, or let ranks share cores: --overload" if most else "reserve fewer"
        if policy.cores_per_rank and not most:
            remedy = f"make --cores-per-rank at most {usable}"
        return f"has {usable} usable cores{kept}; {remedy}"
    return (
        f"has {usable} usable cores{kept}, not {ranks} x {policy.cores_per_rank}; make X at most "
        f"{usable // policy.cores_per_rank}, or --cores-per-rank at most {usable // ranks}"
    )


def _without_reserved(packages: Sequence[list[Core]], count: int) -> list[list[Core]]:
    """Leave out the first cores of each NUMA node in turn: interrupts and system services run there."""
    nodes: dict[tuple[int, int | None], list[Core]] = {}
    for package in packages if count else ():
        for core in package:
            nodes.setdefault((core.package, core.numa_node), []).append(core)
    in_turn = [core for turn in zip_longest(*nodes.values()) for core in turn if core is not None]
    reserved = set(in_turn[:count])
    return [[core for core in package if core not in reserved] for package in packages]


def _choose_gpus(machine: Machine, ranks: int, policy: PlacementPolicy) -> list[GPU | None]:
    """Return each rank's GPU; where there are fewer GPUs than ranks none, or each in turn if they are shared."""
    gpus = list(machine.gpus)
    if policy.gpu_order is not None:
        numbers = {gpu.number: gpu for gpu in gpus}
        missing = [str(number) for number in policy.gpu_order if number not in numbers]
        if missing:
            raise PlacementError(f"has no GPU {','.join(missing)}; --gpu-order takes {', '.join(map(str, numbers))}")
        gpus = [numbers[number] for number in policy.gpu_order]
    if ranks > len(gpus):
        shared = policy.share_gpus and gpus
        return [gpus[rank % len(gpus)] if shared else None for rank in range(ranks)]
    if policy.packing and all(gpu.package is not None for gpu in gpus):
        sizes = {home: sum(gpu.package == home for gpu in gpus) for home in (gpu.package for gpu in gpus)}
        turn = {gpu: sum(other.package == gpu.package for other in gpus[:place]) for place, gpu in enumerate(gpus)}
        if policy.packing == "spread":
            taken = sorted(gpus, key=lambda gpu: turn[gpu])[:ranks]
        else:  # the smallest package that has enough, else the largest first
            taken = sorted(gpus, key=lambda gpu: (sizes[gpu.package] < ranks, abs(sizes[gpu.package] - ranks)))[:ranks]
        return [gpu for gpu in gpus if gpu in taken]
    return [*gpus[:ranks]]


def _packed(packages: Sequence[list[Core]], wanted: int) -> list[list[Core]]:
    """Keep as few packages as hold `wanted` cores, the first ones; the others are left empty."""
    kept: list[list[Core]] = []
    for package in packages:
        kept.append(package if sum(map(len, kept)) < wanted else [])
    return kept


def _cut(share: Sequence[Core], gpu: GPU | None, policy: PlacementPolicy) -> Sequence[Core]:
    """Take so many cores of a share, those of the GPU's NUMA node first."""
    count = policy.cores_per_rank or len(share)
    if len(share) < count and not policy.overload:
        raise PlacementError(
            f"can give no more than {len(share)} cores to a rank inside one package; "
            f"make --cores-per-rank at most {len(share)}"
        )
    near = sorted(share, key=lambda core: gpu is not None and core.numa_node != gpu.numa_node)
    return sorted(near[:count], key=lambda core: core.logical_index)


def _widened(share: Sequence[Core], every: Sequence[Core], bind: str) -> Sequence[Core]:
    """Return what a rank with this share may run on."""
    if bind == "none":
        return every
    if bind == "core":
        return share
    if bind == "package":
        packages = {core.package for core in share}
        return [core for core in every if core.package in packages]
    nodes = {(core.package, core.numa_node) for core in share}
    return [core for core in every if (core.package, core.numa_node) in nodes]


def _seat(
    local_rank: int,
    share: Sequence[Core],
    gpu: GPU | None,
    machine: Machine,
    cores: Sequence[Core],
    policy: PlacementPolicy,
) -> LocalRankPlacement:
    per_core = policy.threads_per_core
    threads = sum(len(core.pus[:per_core]) for core in share) if per_core else len(share)
    given = [core._replace(pus=core.pus[:per_core]) for core in cores] if per_core else cores
    return LocalRankPlacement(local_rank, tuple(given), gpu, threads, _near_nics(machine, gpu, share))


def _near_nics(machine: Machine, gpu: GPU | None, share: Sequence[Core]) -> tuple[str, ...]:
    """Return the RDMA devices near a rank; none where it makes no difference."""
    packages = {core.package for core in share}
    homes = {nic.rdma: nic.package for nic in machine.nics or () if nic.rdma}
    near = gpu.nics if gpu is not None else [name for name, package in homes.items() if package in packages]
    names = tuple(name for name in homes if name in near)
    return names if len(names) < len(homes) else ()


def _gpu_homes(gpus: Sequence[GPU | None], packages: Sequence[Sequence[Core]], *, overload: bool) -> list[int] | None:
    """Return each rank's package, as its GPU has it; None where that is unknown or has no core a rank."""
    homes = [gpu.package for gpu in gpus if gpu is not None and gpu.package is not None]
    if len(homes) < len(gpus):
        return None
    full = any(homes.count(home) > len(packages[home]) * (len(gpus) if overload else 1) for home in set(homes))
    return None if full else homes


def _homes(packages: Sequence[Sequence[Core]], ranks: int) -> list[int]:
    """Deal ranks to packages so that the smallest share of cores is as large as possible."""
    homes: list[int] = []
    for _ in range(ranks):
        homes.append(max(range(len(packages)), key=lambda p: len(packages[p]) / (homes.count(p) + 1)))
    return sorted(homes)


def _share(
    packages: Sequence[Sequence[Core]], homes: Sequence[int], gpus: Sequence[GPU | None]
) -> list[Sequence[Core]]:
    """Deal each package's cores to its ranks, NUMA node by NUMA node."""
    shares: list[Sequence[Core]] = [()] * len(homes)
    for package, cores in enumerate(packages):
        ranks = [rank for rank, home in enumerate(homes) if home == package]
        if ranks:
            for rank, share in zip(ranks, _matched(_blocks(cores, len(ranks)), [gpus[r] for r in ranks]), strict=True):
                shares[rank] = share
    return shares


def _blocks(cores: Sequence[Core], ranks: int) -> list[Sequence[Core]]:
    """Cut a package's cores into a block a rank, each inside one NUMA node where there are enough ranks."""
    nodes: dict[int | None, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.numa_node, []).append(core)
    parts = list(nodes.values())
    if ranks < len(parts):
        return _span(parts, ranks)
    homes = _homes(parts, ranks)
    return [block for place, part in enumerate(parts) for block in _deal(part, homes.count(place))]


def _matched(blocks: list[Sequence[Core]], gpus: Sequence[GPU | None]) -> list[Sequence[Core]]:
    """Give each rank a block: one on its GPU's NUMA node while there is one, then the nearest that is left."""
    nodes = [{core.numa_node for core in block} for block in blocks]
    wanted = [None if gpu is None else gpu.numa_node for gpu in gpus]
    left = list(range(len(blocks)))
    taken: dict[int, int] = {}
    for rank, node in enumerate(wanted):
        near = next((place for place in left if node in nodes[place]), None)
        if node is not None and near is not None:
            taken[rank] = near
            left.remove(near)
    for rank, node in enumerate(wanted):
        if rank not in taken:
            centre = next((place for place, inside in enumerate(nodes) if node in inside), 0)
            taken[rank] = min(left, key=lambda place: abs(place - centre))
            left.remove(taken[rank])
    return [blocks[taken[rank]] for rank in range(len(gpus))]


def _deal(cores: Sequence[Core], ranks: int) -> list[Sequence[Core]]:
    """Cut cores into a block a rank, differing by at most one core; more ranks than cores share them."""
    if ranks > len(cores):
        return [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    share, more = divmod(len(cores), ranks) if ranks else (0, 0)
    ends = [share * rank + min(rank, more) for rank in range(ranks + 1)]
    return [cores[low:high] for low, high in zip(ends, ends[1:], strict=False)]


def _span(packages: Sequence[Sequence[Core]], ranks: int) -> list[Sequence[Core]]:
    """Give each rank whole neighbouring packages, cut where each share comes nearest to an equal one."""
    filled = [package for package in packages if package]
    ends = [sum(map(len, filled[:count])) for count in range(len(filled) + 1)]
    cuts = [0]
    for rank in range(1, ranks):
        possible = range(cuts[-1] + 1, len(filled) - (ranks - rank) + 1)
        cuts.append(min(possible, key=lambda cut: abs(ends[cut] - ends[-1] * rank / ranks)))
    cuts.append(len(filled))
    return [
        [core for package in filled[low:high] for core in package] for low, high in zip(cuts, cuts[1:], strict=False)
    ]
