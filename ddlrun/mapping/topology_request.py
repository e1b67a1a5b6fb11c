"""The job's topology from what the user said of it, and the reason in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import check_hosts
from ddlrun.topology import Topology

Claim = tuple[int, str]


class TopologyReason(NamedTuple):
    """The reason for a topology: for its X, and for its Y and Z where a profile gave them."""

    accelerators: str
    hosts: str | None = None

    def __str__(self) -> str:
        return self.accelerators if self.hosts is None else f"{self.accelerators}; Y, Z: {self.hosts}"


# What one rank may stand for: word -> how many of them a machine has.
UNITS: dict[str, Callable[[Machine], int]] = {
    "gpu": lambda machine: len(machine.gpus),
    "package": lambda machine: len({core.package for core in machine.cores if core.usable}),
    "numa": lambda machine: machine.numa_domains,
    "core": lambda machine: sum(core.usable for core in machine.cores),
}
PLURAL = {"gpu": "GPUs", "package": "packages", "numa": "NUMA nodes", "core": "usable cores"}


class TopologyRequest(NamedTuple):
    """What the user said, None where nothing: a topology, -np, --accelerators, --nodes, --racks, --aisles."""

    topology: Topology | None = None
    processes: int | None = None
    accelerators: int | str | None = None
    nodes: int | None = None
    racks: int | None = None
    aisles: int | None = None
    gpus: int | None = None
    """GPUs that the scheduler gave on each host."""


def check_request(wish: TopologyRequest, hosts: HostList) -> None:
    """Raise InputError for what contradicts itself whatever the hosts are made of."""
    stated = _stated(wish, hosts)
    clashes = _clashes(stated)
    if not stated and wish.accelerators is None and not hosts.slots_are_capacity:
        _slots(hosts)
    if wish.topology is None:
        _hosts_shape(wish, hosts)
    else:
        check_hosts(wish.topology, hosts)
        clashes += _topology_clashes(wish, wish.topology)
    if clashes:
        raise InputError(*(f"{clash}; leave one of them out" for clash in clashes))


def choose_topology(
    wish: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]
) -> tuple[Topology, TopologyReason]:
    """Return the topology and why it is that one.

    Raises InputError where two wishes contradict each other (both are shown), or where hosts do not
    divide into equal racks.
    """
    check_request(wish, hosts)
    claims = _stated(wish, hosts)
    if isinstance(wish.accelerators, str):
        claims.append(_count(wish.accelerators, wish, hosts, machines, f"--accelerators {wish.accelerators}"))
    claims = claims or [_by_slots(wish, hosts, machines) or _by_machine(wish, hosts, machines)]
    clashes = _clashes(claims)
    if clashes:
        raise InputError(*(f"{clash}; leave one of them out" for clash in clashes))
    value, reason = claims[0]
    shape = _hosts_shape(wish, hosts) if wish.topology is None else wish.topology.dims[1:]
    return Topology((value, *shape)), TopologyReason(reason)


def _stated(wish: TopologyRequest, hosts: HostList) -> list[Claim]:
    """Collect what is said of X in numbers, the strongest first."""
    claims: list[Claim] = []
    if wish.topology is not None:
        claims.append((wish.topology.accelerators, f"--topology {wish.topology}"))
    if isinstance(wish.accelerators, int):
        claims.append((wish.accelerators, f"--accelerators {wish.accelerators}"))
    if wish.processes is not None and wish.topology is None:
        claims.append(_divided(wish.processes, hosts))
    return claims


def _clashes(claims: Sequence[Claim]) -> list[str]:
    return [
        f"{claims[0][1]} means X = {claims[0][0]}, but {reason} means X = {value}"
        for value, reason in claims[1:]
        if value != claims[0][0]
    ]


def _divided(processes: int, hosts: HostList) -> Claim:
    share, left = divmod(processes, len(hosts))
    if left or not share:
        raise InputError(
            f"-np {processes} does not divide equally among {len(hosts)} hosts ({hosts}); "
            f"take {' or '.join(str(n * len(hosts)) for n in (share, share + 1) if n)}, or other hosts"
        )
    return share, f"-np {processes} over {len(hosts)} host{'s' * (len(hosts) > 1)}"


def _by_slots(wish: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> Claim | None:
    """Take X from the slots; where these may be cores, one rank a GPU is enough."""
    if not hosts.slots_are_capacity or not all(machines[name].gpus for name in hosts.names):
        return _slots(hosts)
    least = min((host.slots for host in hosts if host.slots is not None), default=0)
    gpus, _ = _count("gpu", wish, hosts, machines, "one rank a GPU")
    return (gpus, f"one rank a GPU, with slots enough ({hosts.source})") if gpus <= least else _slots(hosts)


def _slots(hosts: HostList) -> Claim | None:
    """Take X from the slots, where every host says how many it has."""
    slots = {host.slots for host in hosts}
    if slots == {None}:
        return None
    if len(slots) > 1 or None in slots:
        said = ", ".join(f"{host.name}:{host.slots or '?'}" for host in list(hosts)[:8])
        raise InputError(
            f"{hosts.source}: the slots differ ({said}); say how many ranks each host gets: --accelerators N"
        )
    return next(slot for slot in slots if slot is not None), f"the slots of {hosts.source}"


def _by_machine(wish: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> Claim:
    if all(machines[name].gpus for name in hosts.names):
        return _count("gpu", wish, hosts, machines, "one rank a GPU")
    return _count("package", wish, hosts, machines, "one rank a package, as there are no GPUs")


def _count(unit: str, wish: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine], reason: str) -> Claim:
    counts = {name: UNITS[unit](machines[name]) for name in hosts.names}
    if len(set(counts.values())) > 1:
        first = {count: name for name, count in reversed(counts.items())}
        said = ", ".join(f"{name} has {count}" for count, name in reversed(first.items()))
        raise InputError(f"{reason}: the hosts differ in {PLURAL[unit]} ({said}); give --accelerators a number")
    count = counts[hosts.names[0]]
    if unit == "gpu" and wish.gpus and wish.gpus < count:
        return wish.gpus, f"{reason} that the scheduler gave ({hosts.source})"
    if not count:
        machine = machines[hosts.names[0]]
        raise InputError(f"{reason}: no {unit} found on {hosts} ({machine}; {machine.source}); give a number")
    return count, reason


def _hosts_shape(wish: TopologyRequest, hosts: HostList) -> tuple[int, ...]:
    """Return (Y, Z, A): what is not said is worked out, so that the product is the number of hosts."""
    aisles = wish.aisles or 1
    known = (wish.nodes or 1) * (wish.racks or 1) * aisles
    rest, left = divmod(len(hosts), known)
    if left or (wish.nodes and wish.racks and rest != 1):
        said = " ".join(
            f"--{name} {size}"
            for name, size in (("nodes", wish.nodes), ("racks", wish.racks), ("aisles", wish.aisles))
            if size
        )
        raise InputError(f"{said} makes {known} hosts or a multiple, but {len(hosts)} are there ({hosts})")
    nodes = wish.nodes or rest
    return nodes, wish.racks or (rest if wish.nodes else 1), aisles


def _topology_clashes(wish: TopologyRequest, topology: Topology) -> list[str]:
    _, nodes, racks, aisles = (*topology.dims, 1)[:4]
    named = (("nodes", wish.nodes, "Y", nodes), ("racks", wish.racks, "Z", racks), ("aisles", wish.aisles, "A", aisles))
    clashes = [
        f"--topology {topology} means {axis} = {size}, but --{name} {said} means {axis} = {said}"
        for name, said, axis, size in named
        if said is not None and said != size
    ]
    if wish.processes not in (None, topology.size):
        clashes.append(f"--topology {topology} means {topology.size} ranks, but -np asks for {wish.processes}")
    return clashes
