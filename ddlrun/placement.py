"""Where every rank goes: Topology x hosts x machines -> Placement."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.machine import GPU, Core, Machine
from ddlrun.topology import RankOrder, Topology, describe


class Seat(NamedTuple):
    """What one local rank gets on a machine."""

    local_rank: int
    cores: tuple[Core, ...]
    gpu: GPU | None

    @property
    def threads(self) -> int:
        """One OpenMP thread a core."""
        return len(self.cores)


class PlacedRank(NamedTuple):
    """One rank, its host, its coordinates (x, y, z[, a]) and its seat."""

    rank: int
    host: Host
    coords: tuple[int, ...]
    seat: Seat


class Placement(NamedTuple):
    """Every rank's place. Hosts with equal machines share their seats: it grows with hosts alone."""

    topology: Topology
    order: RankOrder
    hosts: HostList
    machines: tuple[Machine, ...]
    seats: tuple[tuple[Seat, ...], ...]

    def by_host(self) -> Iterator[PlacedRank]:
        """Yield all ranks, host after host, rank 0 first."""
        for index, host in enumerate(self.hosts):
            stride, offset = self.topology.rank_line(index, self.order)
            coords = self.topology.host_coords(index)
            for seat in self.seats[index]:
                yield PlacedRank(offset + stride * seat.local_rank, host, (seat.local_rank, *coords), seat)

    def groups(self) -> list[tuple[list[int], Machine, tuple[Seat, ...]]]:
        """Return hosts that look the same together: (host indexes, machine, seats)."""
        found: dict[int, tuple[list[int], Machine, tuple[Seat, ...]]] = {}
        for index, (machine, seats) in enumerate(zip(self.machines, self.seats, strict=True)):
            found.setdefault(id(seats), ([], machine, seats))[0].append(index)
        return list(found.values())


def place(topology: Topology, hosts: HostList, machines: Mapping[str, Machine], order: RankOrder) -> Placement:
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
    ranks = topology.accelerators
    crowded = [_crowded(topology, kind, alike[key]) for key, kind in kinds.items() if _usable(kind) < ranks]
    if crowded:
        raise PlacementError(*crowded)
    seats = {key: seat_ranks(kind, ranks) for key, kind in kinds.items()}
    return Placement(topology, order, hosts, tuple(chosen), tuple(seats[id(machine)] for machine in chosen))


def check_hosts(topology: Topology, hosts: HostList) -> None:
    """Raise InputError where the number of hosts, or the slots of any, do not fit the topology."""
    if len(hosts) != topology.hosts:
        needed = f"{topology.hosts} host{'s' * (topology.hosts > 1)} ({describe(topology.dims[1:], 1)})"
        there = f"{len(hosts)} {'is' if len(hosts) == 1 else 'are'} there ({hosts.source}: {_few(hosts.names)})"
        raise InputError(f"topology {topology} needs {needed}, but {there}")
    ranks = topology.accelerators
    short = [host for host in hosts if host.slots is not None and host.slots < ranks]
    if short:
        raise InputError(
            *(
                f"topology {topology} puts {ranks} ranks on each host, but {host.name} offers {host.slots} slots "
                f"({hosts.source})"
                for host in short
            )
        )


def _usable(machine: Machine) -> int:
    return sum(core.usable for core in machine.cores)


def _few(names: Sequence[str]) -> str:
    return fold(names) if len(names) <= 64 else f"{names[0]} ... {names[-1]}"


def _crowded(topology: Topology, machine: Machine, names: Sequence[str]) -> str:
    usable = _usable(machine)
    return (
        f"topology {topology} puts {topology.accelerators} ranks on each host, but {_few(names)} has {usable} usable "
        f"cores ({machine}; {machine.source}); make X at most {usable}"
    )


def seat_ranks(machine: Machine, ranks: int) -> tuple[Seat, ...]:
    """Share a machine's usable cores among `ranks` local ranks, 1 <= ranks <= usable cores.

    Each rank stays inside one package where there are at least as many ranks as packages; a rank
    with a GPU goes to the package that its GPU hangs on. Inside a package the cores are dealt out
    in order, the shares differing by at most one core.
    """
    packages = [[core for core in package if core.usable] for package in machine.packages]
    gpus: Sequence[GPU | None] = machine.gpus[:ranks] if ranks <= len(machine.gpus) else [None] * ranks
    homes = _gpu_homes(gpus, packages)
    if homes is None and ranks < sum(map(bool, packages)):
        shares = _span(packages, ranks)
    else:
        homes = homes or _homes(packages, ranks)
        shares = _share(packages, homes, gpus)
    return tuple(
        Seat(local_rank, tuple(cores), gpu) for local_rank, (cores, gpu) in enumerate(zip(shares, gpus, strict=True))
    )


def _gpu_homes(gpus: Sequence[GPU | None], packages: Sequence[Sequence[Core]]) -> list[int] | None:
    """Return each rank's package, as its GPU has it; None where that is unknown or has no core a rank."""
    homes = [gpu.package for gpu in gpus if gpu is not None and gpu.package is not None]
    if len(homes) < len(gpus) or any(homes.count(home) > len(packages[home]) for home in set(homes)):
        return None
    return homes


def _homes(packages: Sequence[Sequence[Core]], ranks: int) -> list[int]:
    """Deal ranks to packages so that the smallest share of cores is as large as possible."""
    homes: list[int] = []
    for _ in range(ranks):
        homes.append(max(range(len(packages)), key=lambda p: len(packages[p]) / (homes.count(p) + 1)))
    return sorted(homes)


def _share(
    packages: Sequence[Sequence[Core]], homes: Sequence[int], gpus: Sequence[GPU | None]
) -> list[Sequence[Core]]:
    """Deal each package's cores to its ranks in order, ranks whose GPU is on a later NUMA node later."""
    shares: list[Sequence[Core]] = [()] * len(homes)
    for package, cores in enumerate(packages):
        ranks = [rank for rank, home in enumerate(homes) if home == package]
        ranks.sort(key=lambda rank: (_numa_place(gpus[rank], cores), rank))
        for rank, share in zip(ranks, _deal(cores, len(ranks)), strict=True):
            shares[rank] = share
    return shares


def _numa_place(gpu: GPU | None, cores: Sequence[Core]) -> int:
    if gpu is None or gpu.numa_node is None:
        return 0
    return next((place for place, core in enumerate(cores) if core.numa_node == gpu.numa_node), 0)


def _deal(cores: Sequence[Core], ranks: int) -> list[Sequence[Core]]:
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
