"""The user's request for a topology, and the choice of the topology that satisfies it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError, spell_options
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import check_hosts
from ddlrun.mapping.slots import divides_equally, fill_slots
from ddlrun.topology import JobTopology, Topology, UnequalTopology
from ddlrun.wording import counted

_MOST_LISTED = 8

# The units that a rank may stand for, each with the function that counts them on a machine.
UNITS: dict[str, Callable[[Machine], int]] = {
    "gpu": lambda machine: len(machine.gpus),
    "package": lambda machine: len({core.package for core in machine.cores if core.usable}),
    "numa": lambda machine: machine.numa_domains,
    "core": lambda machine: sum(core.usable for core in machine.cores),
    "gpu-or-core": lambda machine: len(machine.gpus) or sum(core.usable for core in machine.cores),
}


class TopologyRequest(NamedTuple):
    """The options that determine the topology: --topology, -np, --ranks-per-host, --nodes, --racks, --aisles.

    None stands for an option that was not given. `gpus` is the number of GPUs that the scheduler allocated on
    each host.
    """

    topology: Topology | None = None
    processes: int | None = None
    ranks_per_host: int | str | None = None
    nodes: int | None = None
    racks: int | None = None
    aisles: int | None = None
    gpus: int | None = None


class TopologyReason(NamedTuple):
    """The reason for a topology: for its X, and for its Y and Z if a profile gave them."""

    ranks_per_host: str
    hosts: str | None = None

    def __str__(self) -> str:
        return self.ranks_per_host if self.hosts is None else f"{self.ranks_per_host}; Y, Z: {self.hosts}"


class _Claim(NamedTuple):
    """The number of ranks of each host, and the option or the fact that gives it."""

    local_sizes: tuple[int, ...]
    reason: str

    @property
    def meaning(self) -> str:
        """The numbers in words."""
        if len(set(self.local_sizes)) == 1:
            return f"X = {self.local_sizes[0]}"
        return f"{UnequalTopology(self.local_sizes)} ranks"


def check_request(request: TopologyRequest, hosts: HostList) -> None:
    """Raise InputError for contradictions that can be found without the machines."""
    stated = _stated(request, hosts)
    contradictions = _contradictions(stated)
    if stated:
        contradictions += _process_contradictions(stated[0], request, hosts)
    elif request.ranks_per_host is None and request.processes is not None:
        _by_processes(request.processes, hosts)
    elif request.ranks_per_host is None and not hosts.slots_are_capacity:
        _by_slots(hosts)
    if request.topology is None:
        _hosts_shape(request, hosts)
    else:
        check_hosts(request.topology, hosts)
        contradictions += _topology_contradictions(request, request.topology)
    _raise(contradictions)


def choose_topology(
    request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]
) -> tuple[JobTopology, TopologyReason]:
    """Return the topology of a request, and the reason for it.

    Raises InputError if two options contradict each other (both are shown), or if the hosts do not divide into
    equal racks.
    """
    check_request(request, hosts)
    claims = _stated(request, hosts)
    if isinstance(request.ranks_per_host, str):
        unit = request.ranks_per_host
        claims.append(_count(unit, request, hosts, machines, f"`--ranks-per-host` {unit}"))
    elif request.processes is not None and not claims:
        claims.append(_by_processes(request.processes, hosts))
    claim = claims[0] if claims else _by_resources(request, hosts, machines)
    _raise([*_contradictions(claims), *_process_contradictions(claim, request, hosts)])
    reason = TopologyReason(spell_options(claim.reason))
    if len(set(claim.local_sizes)) > 1:
        return UnequalTopology(claim.local_sizes), reason
    shape = _hosts_shape(request, hosts) if request.topology is None else request.topology.dims[1:]
    return Topology((claim.local_sizes[0], *shape)), reason


def unequal_error(options: str, topology: UnequalTopology) -> InputError:
    """Return the error for options that need a topology XxYxZ."""
    return InputError(
        f"{options}: a topology XxYxZ has the same number of ranks on each host, but these hosts have {topology}; "
        f"give all the same, such as `--ranks-per-host` {min(topology.local_sizes)}, or leave the option out"
    )


def _raise(contradictions: Sequence[str]) -> None:
    if contradictions:
        raise InputError(*(f"{contradiction}; leave one of them out" for contradiction in contradictions))


def _stated(request: TopologyRequest, hosts: HostList) -> list[_Claim]:
    """Return the values of X that the options give as numbers, the strongest first."""
    claims: list[_Claim] = []
    if request.topology is not None:
        claims.append(_Claim((request.topology.ranks_per_host,) * len(hosts), f"`--topology` {request.topology}"))
    if isinstance(request.ranks_per_host, int):
        claims.append(_Claim((request.ranks_per_host,) * len(hosts), f"`--ranks-per-host` {request.ranks_per_host}"))
    return claims


def _contradictions(claims: Sequence[_Claim]) -> list[str]:
    """Return a problem for each claim that differs from the first."""
    return [
        f"{claims[0].reason} means {claims[0].meaning}, but {claim.reason} means {claim.meaning}"
        for claim in claims[1:]
        if claim.local_sizes != claims[0].local_sizes
    ]


def _process_contradictions(claim: _Claim, request: TopologyRequest, hosts: HostList) -> list[str]:
    """Return a problem if -np is not the sum of the ranks; that of a --topology is found elsewhere."""
    processes = request.processes
    if processes is None or request.topology is not None or processes == sum(claim.local_sizes):
        return []
    share, left = divmod(processes, len(hosts))
    number = f"`-np` {processes} means {counted(processes, 'rank')}"
    if share and not left:
        number = f"`-np` {processes} over {counted(len(hosts), 'host')} means X = {share}"
    return [f"{claim.reason} means {claim.meaning}, but {number}"]


def _by_processes(processes: int, hosts: HostList) -> _Claim:
    """Return the same number of ranks for each host if possible, else as many as the slots of each in turn."""
    share, left = divmod(processes, len(hosts))
    equal = _Claim((share,) * len(hosts), f"`-np` {processes} over {counted(len(hosts), 'host')}")
    if divides_equally(processes, hosts):
        return equal
    filled = fill_slots(processes, hosts)
    if filled is not None and all(filled):
        return _Claim(filled, f"`-np` {processes} over the slots of {hosts.source}")
    if share and not left:  # too few slots, which are named with the topology
        return equal
    slots = sum(host.slots or 0 for host in hosts)
    if all(host.slots for host in hosts) and slots < processes:
        have = f"{hosts} have {counted(slots, 'slot')} ({hosts.source})"
        raise InputError(f"`-np` {processes}, but {have}; use `-np` {slots} or less, more slots, or more hosts")
    possible = " or ".join(str(ranks * len(hosts)) for ranks in (share, share + 1) if ranks)
    remedy = f"use {possible}, other hosts, or give each host its slots: `-H` HOST:N,HOST:M"
    raise InputError(f"`-np` {processes} does not divide equally among {len(hosts)} hosts ({hosts}); {remedy}")


def _by_resources(request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> _Claim:
    """Return the ranks by the slots or, without them, by the machines."""
    if hosts.slots_are_capacity and all(machines[name].gpus for name in hosts.names):
        gpus = _count("gpu", request, hosts, machines, "one rank per GPU").local_sizes
        if all(ranks <= (host.slots or 0) for ranks, host in zip(gpus, hosts, strict=True)):
            return _Claim(gpus, f"one rank per GPU, with enough slots ({hosts.source})")
    return _by_slots(hosts) or _by_machine(request, hosts, machines)


def _by_slots(hosts: HostList) -> _Claim | None:
    """Return the slots as ranks, None if no host has any. Raises InputError if some hosts have none."""
    slots = tuple(host.slots for host in hosts if host.slots is not None)
    if not slots:
        return None
    if len(slots) < len(hosts):
        listed = ", ".join(f"{host.name}:{host.slots or '?'}" for host in list(hosts)[:_MOST_LISTED])
        raise InputError(
            f"{hosts.source}: some hosts have no slots ({listed}); give them all slots, or the number of ranks of each "
            "host: `--ranks-per-host` N"
        )
    return _Claim(slots, f"the slots of {hosts.source}")


def _by_machine(request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine]) -> _Claim:
    if all(machines[name].gpus for name in hosts.names):
        return _count("gpu", request, hosts, machines, "one rank per GPU")
    return _count("package", request, hosts, machines, "one rank per package, as there are no GPUs")


def _count(
    unit: str, request: TopologyRequest, hosts: HostList, machines: Mapping[str, Machine], reason: str
) -> _Claim:
    """Return the number of units of each host. Raises InputError if a host has none."""
    counts = {name: UNITS[unit](machines[name]) for name in hosts.names}
    without = next((name for name, number in counts.items() if not number), None)
    if without is not None:
        host = without if any(counts.values()) else str(hosts)
        machine = machines[without]
        raise InputError(f"{reason}: {host} has no {unit} ({machine}; {machine.source}); give a number")
    allocated = request.gpus if unit in ("gpu", "gpu-or-core") else None
    if allocated and allocated < max(counts.values()):
        limited = tuple(min(number, allocated) for number in counts.values())
        return _Claim(limited, f"{reason} that the scheduler allocated ({hosts.source})")
    return _Claim(tuple(counts.values()), reason)


def _hosts_shape(request: TopologyRequest, hosts: HostList) -> tuple[int, ...]:
    """Return (Y, Z, A), completed so that their product is the number of hosts."""
    aisles = request.aisles or 1
    product = (request.nodes or 1) * (request.racks or 1) * aisles
    rest, left = divmod(len(hosts), product)
    if left or (request.nodes and request.racks and rest != 1):
        options = (("nodes", request.nodes), ("racks", request.racks), ("aisles", request.aisles))
        options_text = " ".join(f"`--{name}` {size}" for name, size in options if size)
        raise InputError(f"{options_text} needs {product} hosts or a multiple, but the job has {len(hosts)} ({hosts})")
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
        f"`--topology` {topology} means {axis} = {size}, but `--{name}` {number} means {axis} = {number}"
        for name, number, axis, size in options
        if number is not None and number != size
    ]
    if request.processes not in (None, topology.size):
        contradictions.append(
            f"`--topology` {topology} means {counted(topology.size, 'rank')}, but `-np` {request.processes} means "
            f"{request.processes}"
        )
    return contradictions
