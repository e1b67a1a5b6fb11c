"""The user's request for a topology, and the choice of the topology that satisfies it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import check_hosts
from ddlrun.topology import Topology
from ddlrun.wording import counted

_MOST_LISTED = 8

# The units that a rank may stand for, each with the function that counts them on a machine.
UNITS: dict[str, Callable[[Machine], int]] = {
    "gpu": lambda machine: len(machine.gpus),
    "package": lambda machine: len({core.package for core in machine.cores if core.usable}),
    "numa": lambda machine: machine.numa_domains,
    "core": lambda machine: sum(core.usable for core in machine.cores),
}
PLURAL = {"gpu": "GPUs", "package": "packages", "numa": "NUMA nodes", "core": "usable cores"}


class TopologyRequest(NamedTuple):
    """The options that determine the topology: --topology, -np, --accelerators, --nodes, --racks, --aisles.

    None stands for an option that was not given. `gpus` is the number of GPUs that the scheduler allocated on
    each host.
    """

    topology: Topology | None = None
    processes: int | None = None
    accelerators: int | str | None = None
    nodes: int | None = None
    racks: int | None = None
    aisles: int | None = None
    gpus: int | None = None


class TopologyReason(NamedTuple):
    """The reason for a topology: for its X, and for its Y and Z if a profile gave them."""

    accelerators: str
    hosts: str | None = None

    def __str__(self) -> str:
        return self.accelerators if self.hosts is None else f"{self.accelerators}; Y, Z: {self.hosts}"


class _Claim(NamedTuple):
    """A value for X, and the option or the fact that gives it."""

    accelerators: int
    reason: str


def check_request(request: TopologyRequest, hosts: HostList) -> None:
    """Raise InputError for contradictions that can be found without the machines."""
    stated = _stated(request, hosts)
    contradictions = _contradictions(stated)
    if not stated and request.accelerators is None and not hosts.slots_are_capacity:
        _slots(hosts)
    if request.topology is None:
        _hosts_shape(request, hosts)
    else:
        check_hosts(request.topology, hosts)
        contradictions += _topology_contradictions(request, request.topology)
    _raise(contradictions)


def choose_topology(
    request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]
) -> tuple[Topology, TopologyReason]:
    """Return the topology of a request, and the reason for it.

    Raises InputError if two options contradict each other (both are shown), or if the hosts do not divide into
    equal racks.
    """
    check_request(request, hosts)
    claims = _stated(request, hosts)
    if isinstance(request.accelerators, str):
        reason = f"--accelerators {request.accelerators}"
        claims.append(_count(request.accelerators, request, hosts, machines, reason))
    claims = claims or [_by_slots(request, hosts, machines) or _by_machine(request, hosts, machines)]
    _raise(_contradictions(claims))
    shape = _hosts_shape(request, hosts) if request.topology is None else request.topology.dims[1:]
    return Topology((claims[0].accelerators, *shape)), TopologyReason(claims[0].reason)


def _raise(contradictions: Sequence[str]) -> None:
    if contradictions:
        raise InputError(*(f"{contradiction}; leave one of them out" for contradiction in contradictions))


def _stated(request: TopologyRequest, hosts: HostList) -> list[_Claim]:
    """Return the values of X that the options give as numbers, the strongest first."""
    claims: list[_Claim] = []
    if request.topology is not None:
        claims.append(_Claim(request.topology.accelerators, f"--topology {request.topology}"))
    if isinstance(request.accelerators, int):
        claims.append(_Claim(request.accelerators, f"--accelerators {request.accelerators}"))
    if request.processes is not None and request.topology is None:
        claims.append(_divide(request.processes, hosts))
    return claims


def _contradictions(claims: Sequence[_Claim]) -> list[str]:
    """Return a problem for each claim that differs from the first."""
    return [
        f"{claims[0].reason} means X = {claims[0].accelerators}, but {claim.reason} means X = {claim.accelerators}"
        for claim in claims[1:]
        if claim.accelerators != claims[0].accelerators
    ]


def _divide(processes: int, hosts: HostList) -> _Claim:
    share, left = divmod(processes, len(hosts))
    if left or not share:
        possible = " or ".join(str(ranks * len(hosts)) for ranks in (share, share + 1) if ranks)
        raise InputError(
            f"-np {processes} does not divide equally among {len(hosts)} hosts ({hosts}); "
            f"use {possible}, or other hosts"
        )
    return _Claim(share, f"-np {processes} over {counted(len(hosts), 'host')}")


def _by_slots(request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> _Claim | None:
    """Return X by the slots; if these may be cores, one rank per GPU where there are enough slots."""
    if not hosts.slots_are_capacity or not all(machines[name].gpus for name in hosts.names):
        return _slots(hosts)
    fewest = min((host.slots for host in hosts if host.slots is not None), default=0)
    gpus = _count("gpu", request, hosts, machines, "one rank per GPU").accelerators
    if gpus > fewest:
        return _slots(hosts)
    return _Claim(gpus, f"one rank per GPU, with enough slots ({hosts.source})")


def _slots(hosts: HostList) -> _Claim | None:
    """Return X by the slots, None if no host has any. Raises InputError if they differ."""
    slots = {host.slots for host in hosts}
    if slots == {None}:
        return None
    if len(slots) > 1 or None in slots:
        listed = ", ".join(f"{host.name}:{host.slots or '?'}" for host in list(hosts)[:_MOST_LISTED])
        raise InputError(
            f"{hosts.source}: the slots differ ({listed}); give the number of ranks of each host: --accelerators N"
        )
    return _Claim(next(slot for slot in slots if slot is not None), f"the slots of {hosts.source}")


def _by_machine(request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> _Claim:
    if all(machines[name].gpus for name in hosts.names):
        return _count("gpu", request, hosts, machines, "one rank per GPU")
    return _count("package", request, hosts, machines, "one rank per package, as there are no GPUs")


def _count(
    unit: str, request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine], reason: str
) -> _Claim:
    """Return X as the number of units of each host. Raises InputError if the hosts differ, or have none."""
    counts = {name: UNITS[unit](machines[name]) for name in hosts.names}
    if len(set(counts.values())) > 1:
        first_names: dict[int, str] = {}
        for name, number in counts.items():
            first_names.setdefault(number, name)
        listed = ", ".join(f"{name} has {number}" for number, name in first_names.items())
        raise InputError(f"{reason}: the hosts differ in {PLURAL[unit]} ({listed}); give --accelerators a number")
    number = counts[hosts.names[0]]
    if unit == "gpu" and request.gpus and request.gpus < number:
        return _Claim(request.gpus, f"{reason} that the scheduler allocated ({hosts.source})")
    if not number:
        machine = machines[hosts.names[0]]
        raise InputError(f"{reason}: {hosts} has no {unit} ({machine}; {machine.source}); give a number")
    return _Claim(number, reason)


def _hosts_shape(request: TopologyRequest, hosts: HostList) -> tuple[int, ...]:
    """Return (Y, Z, A), completed so that their product is the number of hosts."""
    aisles = request.aisles or 1
    product = (request.nodes or 1) * (request.racks or 1) * aisles
    rest, left = divmod(len(hosts), product)
    if left or (request.nodes and request.racks and rest != 1):
        options = (("nodes", request.nodes), ("racks", request.racks), ("aisles", request.aisles))
        options_text = " ".join(f"--{name} {size}" for name, size in options if size)
        raise InputError(f"{options_text} makes {product} hosts or a multiple, but {len(hosts)} are there ({hosts})")
    nodes = request.nodes or rest
    return nodes, request.racks or (rest if request.nodes else 1), aisles


def _topology_contradictions(request: TopologyRequest, topology: Topology) -> list[str]:
    _, nodes, racks, aisles = (*topology.dims, 1)[:4]
    options = (
        ("nodes", request.nodes, "Y", nodes),
        ("racks", request.racks, "Z", racks),
        ("aisles", request.aisles, "A", aisles),
    )
    contradictions = [
        f"--topology {topology} means {axis} = {size}, but --{name} {number} means {axis} = {number}"
        for name, number, axis, size in options
        if number is not None and number != size
    ]
    if request.processes not in (None, topology.size):
        contradictions.append(
            f"--topology {topology} means {topology.size} ranks, but -np {request.processes} means {request.processes}"
        )
    return contradictions
