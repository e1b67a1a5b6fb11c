"""Placement of every rank of a job: on which host, cores, GPU and NICs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError, PlacementError
from ddlrun.hosts import Host, HostList, fold
from ddlrun.machine import Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement, place_local_ranks, place_on_cores
from ddlrun.mapping.policy import DEFAULT_POLICY, PlacementPolicy
from ddlrun.topology import JobTopology, RankOrder, Topology, describe
from ddlrun.wording import counted

# A longer list of hosts is shown by its ends; it need not be folded.
_MOST_FOLDED = 64


class PlacedRank(NamedTuple):
    """A rank, its host, its coordinates (x, y, z[, a]) and its binding on the host."""

    rank: int
    host: Host
    coords: tuple[int, ...]
    binding: LocalRankPlacement


class Placement(NamedTuple):
    """The placement of every rank. Hosts with equal machines share `bindings`, so that it grows with hosts alone."""

    topology: JobTopology
    order: RankOrder
    hosts: HostList
    machines: tuple[Machine, ...]
    bindings: tuple[tuple[LocalRankPlacement, ...], ...]
    """The local ranks of each host."""
    policy: PlacementPolicy = DEFAULT_POLICY
    threads: int | None = None
    """The number of OpenMP threads that the user has set for every rank."""

    def threads_of(self, seat: LocalRankPlacement) -> int:
        """Return the number of OpenMP threads of a rank with this place."""
        return self.threads or seat.threads

    def by_host(self) -> Iterator[PlacedRank]:
        """Yield all ranks, host by host, rank 0 first."""
        for index, host in enumerate(self.hosts):
            coords = self.topology.host_coords(index)
            for rank, binding in zip(self.topology.ranks_of(index, self.order), self.bindings[index], strict=True):
                yield PlacedRank(rank, host, (binding.local_rank, *coords), binding)

    def rank_hosts(self) -> tuple[str, ...]:
        """Return the name of each rank's host."""
        return tuple(placed.host.name for placed in sorted(self.by_host(), key=lambda placed: placed.rank))

    def common_cpus(self) -> tuple[tuple[int, ...], ...]:
        """Return the OS indexes of each local rank's PUs; empty where hosts differ, or were not measured."""
        per_host = {
            tuple(tuple(pu.os_index for core in binding.cores for pu in core.pus) for binding in bindings)
            for _, machine, bindings in self.groups()
            if machine.measured
        }
        measured = all(machine.measured for machine in self.machines)
        return per_host.pop() if measured and len(per_host) == 1 else ()

    @property
    def shares_cores(self) -> bool:
        """Whether two ranks may run on the same core."""
        return any(_shares_cores(bindings) for _, _, bindings in self.groups())

    @property
    def overloads(self) -> bool:
        """Whether a host has more ranks than cores for them."""
        return any(
            len({core.logical_index for binding in bindings for core in binding.cores}) < len(bindings)
            for _, _, bindings in self.groups()
        )

    def groups(self) -> list[tuple[list[int], Machine, tuple[LocalRankPlacement, ...]]]:
        """Return the groups of equal hosts: their indexes, their machine, and their local ranks."""
        groups: dict[int, tuple[list[int], Machine, tuple[LocalRankPlacement, ...]]] = {}
        for index, (machine, bindings) in enumerate(zip(self.machines, self.bindings, strict=True)):
            groups.setdefault(id(bindings), ([], machine, bindings))[0].append(index)
        return list(groups.values())


class OrderedCores(NamedTuple):
    """The cores of each rank, as a rank file gives them, and the order of its ranks."""

    order: RankOrder
    cores: Mapping[int, Sequence[Core]]


def place(
    topology: JobTopology,
    hosts: HostList,
    machines: Mapping[str, Machine],
    order: RankOrder,
    policy: PlacementPolicy = DEFAULT_POLICY,
) -> Placement:
    """Place every rank. Raises InputError or PlacementError.

    `machines` maps each host's name to its machine; equal hosts share one object.
    """
    check_hosts(topology, hosts)
    # Hosts with one machine and the same number of ranks are placed once: equal hosts share one Machine object.
    groups: dict[tuple[int, int], list[str]] = {}
    keys = [(id(machines[name]), topology.local_size(index)) for index, name in enumerate(hosts.names)]
    for name, key in zip(hosts.names, keys, strict=True):
        groups.setdefault(key, []).append(name)
    bindings = _place_groups(topology, groups, machines, policy)
    return Placement(
        topology=topology,
        order=order,
        hosts=hosts,
        machines=tuple(machines[name] for name in hosts.names),
        bindings=tuple(bindings[key] for key in keys),
        policy=policy,
    )


def _place_groups(
    topology: JobTopology,
    groups: Mapping[tuple[int, int], Sequence[str]],
    machines: Mapping[str, Machine],
    policy: PlacementPolicy,
) -> dict[tuple[int, int], tuple[LocalRankPlacement, ...]]:
    """Return the placements of each group of hosts; raise PlacementError with the problems of all groups."""
    bindings: dict[tuple[int, int], tuple[LocalRankPlacement, ...]] = {}
    problems: list[str] = []
    for key, names in groups.items():
        machine, ranks = machines[names[0]], key[1]
        try:
            bindings[key] = place_local_ranks(machine, ranks, policy)
        except PlacementError as error:
            stated = _describe_ranks(topology, ranks)
            problems += (
                f"{stated}, but {_abbreviate(names)} {problem} ({machine}; {machine.source})"
                for problem in error.problems
            )
    if problems:
        raise PlacementError(*problems)
    return bindings


def place_cores(
    topology: JobTopology,
    hosts: HostList,
    machines: Mapping[str, Machine],
    cores: OrderedCores,
    policy: PlacementPolicy = DEFAULT_POLICY,
) -> Placement:
    """Place every rank on the given cores. Raises InputError or PlacementError."""
    check_hosts(topology, hosts)
    # Equal hosts with the same cores share one object, as in `place`.
    shared: dict[tuple[int, tuple[tuple[Core, ...], ...]], tuple[LocalRankPlacement, ...]] = {}
    bindings = []
    for index, name in enumerate(hosts.names):
        shares = tuple(tuple(cores.cores[rank]) for rank in topology.ranks_of(index, cores.order))
        key = id(machines[name]), shares
        if key not in shared:
            try:
                shared[key] = place_on_cores(machines[name], shares, policy)
            except PlacementError as error:
                raise PlacementError(*(f"{name} {problem}" for problem in error.problems)) from error
        bindings.append(shared[key])
    return Placement(
        topology=topology,
        order=cores.order,
        hosts=hosts,
        machines=tuple(machines[name] for name in hosts.names),
        bindings=tuple(bindings),
        policy=policy,
    )


def check_hosts(topology: JobTopology, hosts: HostList) -> None:
    """Raise InputError if the number of hosts, or the slots of any host, do not fit the topology."""
    if len(hosts) != topology.hosts and isinstance(topology, Topology):
        needed = f"{counted(topology.hosts, 'host')} ({describe(topology.dims[1:], 1)})"
        available = f"the job has {len(hosts)} ({hosts.source}: {_abbreviate(hosts.names)})"
        raise InputError(f"topology {topology} needs {needed}, but {available}{_smaller_topology(topology, hosts)}")
    _check_slots(topology, hosts)


def _check_slots(topology: JobTopology, hosts: HostList) -> None:
    short: dict[tuple[int, int], list[str]] = {}
    for index, host in enumerate(hosts):
        ranks = topology.local_size(index)
        if host.slots is not None and host.slots < ranks:
            short.setdefault((ranks, host.slots), []).append(host.name)
    if not short:
        return
    remedy = "give `--ranks-per-host` a number, or the hosts more slots"
    if isinstance(topology, Topology):
        remedy = f"{Topology((min(slots for _, slots in short), *topology.dims[1:]))} would fit"
    raise InputError(
        *(
            f"{_describe_ranks(topology, ranks)}, but {fold(names)} {_offer(names)} {counted(slots, 'slot')} "
            f"({hosts.source}); {remedy}"
            for (ranks, slots), names in short.items()
        )
    )


def _describe_ranks(topology: JobTopology, ranks: int) -> str:
    """Return the start of a problem: the ranks of a host that it is about."""
    host = "each host" if isinstance(topology, Topology) else "a host"
    return f"topology {topology} puts {counted(ranks, 'rank')} on {host}"


def _offer(names: Sequence[str]) -> str:
    return "offers" if len(names) == 1 else "offer"


def _smaller_topology(topology: Topology, hosts: HostList) -> str:
    """Return a remedy if there are too few hosts: the largest topology with the same X that they have room for."""
    if len(hosts) >= topology.hosts:
        return ""
    per_rack = min(topology.dims[1], len(hosts))
    racks = min(math.prod(topology.dims[2:]), len(hosts) // per_rack)
    return f"; {Topology((topology.ranks_per_host, per_rack, racks))} would fit"


def _abbreviate(names: Sequence[str]) -> str:
    return fold(names) if len(names) <= _MOST_FOLDED else f"{names[0]} ... {names[-1]}"


def _shares_cores(bindings: Sequence[LocalRankPlacement]) -> bool:
    indexes = [core.logical_index for binding in bindings for core in binding.cores]
    return len(set(indexes)) < len(indexes)
