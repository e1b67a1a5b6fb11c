"""Hosts with known racks: their order, and the Y and Z that the racks give."""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import groupby, zip_longest
from typing import NamedTuple

from ddlrun.hosts import Host, HostList, fold
from ddlrun.mapping.slots import divides_equally, fill_slots
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.topology import JobTopology, Topology
from ddlrun.wording import counted

Rack = Sequence[Host]

_MOST_LISTED = 8


class RackNoteCode(Enum):
    """The texts of notes on racks, with {fields} for their values."""

    UNKNOWN_RACKS = "racks are ignored, as the racks of {hosts} are unknown"
    REORDERED = "hosts are in the order of their racks: {hosts}"
    CROSSING = "groups of {size} hosts that cross racks: {crossing} of {groups}"
    UNEQUAL_RACKS = "{racks} are not equal: used as {groups} groups of {size} hosts, none across racks"
    NO_COMMON_SIZE = (
        "{racks} have no common size: all {hosts} hosts are used as one rack, except by allreduces "
        "of ddlrun.ddl; "
        "--topology Xx{best_size}x{best_count} would keep to racks and leave out {left_out}"
    )
    LEFT_OUT = "left out, as --topology {topology} needs {needed} hosts: {hosts}"
    IDLE = "left out, as the slots of the other hosts take all ranks of -np {processes}: {hosts}"


class RackNote(NamedTuple):
    """A note on how racks were used."""

    code: RackNoteCode
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.code.value.format_map(self.values)


class RackLayout(NamedTuple):
    """The hosts that take part, rack by rack, the request completed with Y and Z, and the hosts left out."""

    hosts: HostList
    request: TopologyRequest
    left_out: tuple[Host, ...] = ()
    notes: tuple[RackNote, ...] = ()


def by_rack(hosts: HostList) -> dict[str, list[Host]]:
    """Return the hosts of each rack, racks and hosts in the order of the list; nothing where any rack is unknown."""
    racks: dict[str, list[Host]] = {}
    for host in hosts:
        if host.rack is None:
            return {}
        racks.setdefault(host.rack, []).append(host)
    return racks


def unequal_racks(topology: JobTopology, hosts: HostList) -> tuple[int, ...]:
    """Return the number of hosts of each rack where racks or hosts are unequal; empty elsewhere.

    Hosts must be in the order of their racks.
    """
    sizes = tuple(map(len, by_rack(hosts).values()))
    in_order = [name for name, _ in groupby(host.rack for host in hosts)]
    is_equal = isinstance(topology, Topology) and len(set(sizes)) == 1
    return () if len(sizes) < 2 or is_equal or len(in_order) != len(sizes) else sizes


def shape_reason(hosts: HostList) -> str:
    """Return the reason for Y and Z that the user left open."""
    all_known = all(host.rack for host in hosts)
    return f"the racks of {hosts.source}" if all_known else f"one rack, as the racks of {hosts.source} are unknown"


def arrange(request: TopologyRequest, hosts: HostList, *, choose: bool = False) -> RackLayout:
    """Order hosts by rack and compute Y and Z, as far as the request leaves them open.

    Y is the size of the racks. Where they differ, it is their greatest common divisor, so that no host is left
    out and no group of Y hosts leaves its rack; without a common divisor, all hosts are one group. A --topology
    that needs fewer hosts than the list has takes whole groups from the racks if these are known, or with
    `choose`. Hosts that get no rank of -np are left out.
    """
    idle = _idle_hosts(request, hosts)
    if idle:
        layout = arrange(request, hosts.take(host for host in hosts if host not in idle))
        values = {"processes": request.processes, "hosts": fold(host.name for host in idle)}
        return layout._replace(left_out=idle, notes=(*layout.notes, RackNote(RackNoteCode.IDLE, values)))
    racks = by_rack(hosts)
    notes = _unknown_racks(hosts)
    if request.topology is not None:
        layout = RackLayout(hosts, request, notes=notes)
        return _choose_hosts(layout, request.topology, list(racks.values()), choose=choose or bool(racks))
    if not racks:
        return RackLayout(hosts, request, notes=notes)
    ordered = hosts.take(host for rack in racks.values() for host in rack)
    if ordered.names != hosts.names:
        notes = (*notes, RackNote(RackNoteCode.REORDERED, {"hosts": ordered}))
    if request.nodes or request.racks or request.aisles:
        return RackLayout(ordered, request, notes=(*notes, *_crossing_groups(request, list(racks.values()))))
    size, size_notes = _common_size(racks)
    completed = request._replace(nodes=size, racks=len(hosts) // size)
    return RackLayout(ordered, completed, notes=(*notes, *size_notes))


def _idle_hosts(request: TopologyRequest, hosts: HostList) -> tuple[Host, ...]:
    """Return the hosts that get no rank, because the slots of those before them suffice for -np."""
    others = (request.topology, request.ranks_per_host, request.nodes, request.racks, request.aisles)
    if request.processes is None or others != (None,) * len(others) or divides_equally(request.processes, hosts):
        return ()
    racks = by_rack(hosts)
    ordered = hosts.take(host for rack in racks.values() for host in rack) if racks else hosts
    filled = fill_slots(request.processes, ordered) or ()
    return tuple(host for host, ranks in zip(ordered, filled, strict=False) if not ranks)


def _unknown_racks(hosts: HostList) -> tuple[RackNote, ...]:
    unknown = [host.name for host in hosts if host.rack is None]
    if not unknown or len(unknown) == len(hosts):
        return ()
    return (RackNote(RackNoteCode.UNKNOWN_RACKS, {"hosts": fold(unknown)}),)


def _crossing_groups(request: TopologyRequest, racks: Sequence[Rack]) -> tuple[RackNote, ...]:
    """Return a note if groups of the requested size do not fit in their racks."""
    hosts = sum(map(len, racks))
    size = request.nodes or max(1, hosts // ((request.racks or 1) * (request.aisles or 1)))
    return _crossing(sum(len(rack) // size for rack in racks), size, hosts // size)


def _crossing(whole: int, size: int, groups: int) -> tuple[RackNote, ...]:
    if whole >= groups:
        return ()
    return (RackNote(RackNoteCode.CROSSING, {"size": size, "crossing": groups - whole, "groups": groups}),)


def _common_size(racks: Mapping[str, Rack]) -> tuple[int, tuple[RackNote, ...]]:
    """Return the size of equal groups of hosts, none of which crosses racks, and a note where racks are unequal."""
    sizes = [len(rack) for rack in racks.values()]
    total, common = sum(sizes), math.gcd(*sizes)
    if len(set(sizes)) == 1:
        return common, ()
    listed = ", ".join(f"{name} ({counted(len(rack), 'host')})" for name, rack in list(racks.items())[:_MOST_LISTED])
    values: dict[str, object] = {"racks": f"racks {listed}"}
    if common > 1:
        values |= {"groups": total // common, "size": common}
        return common, (RackNote(RackNoteCode.UNEQUAL_RACKS, values),)
    best_size, best_count = max(
        ((size, sum(other // size for other in sizes)) for size in range(2, max(sizes) + 1)),
        key=lambda shape: (shape[0] * shape[1], shape[0]),
    )
    left_out = fold(host.name for rack in racks.values() for host in rack[len(rack) // best_size * best_size :])
    values |= {"hosts": total, "best_size": best_size, "best_count": best_count, "left_out": left_out}
    return total, (RackNote(RackNoteCode.NO_COMMON_SIZE, values),)


def _choose_hosts(layout: RackLayout, topology: Topology, racks: Sequence[Rack], *, choose: bool) -> RackLayout:
    """Choose the hosts of a topology: if possible, groups of Y hosts inside one rack each."""
    hosts = layout.hosts
    ordered = [host for rack in racks for host in rack] or list(hosts)
    if not choose or len(hosts) < topology.hosts:
        return layout._replace(hosts=hosts.take(ordered))
    size, count = topology.dims[1], topology.hosts // topology.dims[1]
    groups = _whole_groups(racks, size)[:count]
    chosen = {host.name for group in groups for host in group}
    notes = layout.notes
    if len(groups) < count:
        chosen = {host.name for host in ordered[: topology.hosts]}
        notes += _crossing(len(groups), size, count) if racks and size > 1 else ()
    left_out = tuple(host for host in ordered if host.name not in chosen)
    if left_out:
        names = fold(host.name for host in left_out)
        values = {"topology": topology, "needed": topology.hosts, "hosts": names}
        notes = (*notes, RackNote(RackNoteCode.LEFT_OUT, values))
    chosen_hosts = hosts.take(host for host in ordered if host.name in chosen)
    return layout._replace(hosts=chosen_hosts, left_out=left_out, notes=notes)


def _whole_groups(racks: Sequence[Rack], size: int) -> list[Rack]:
    """Return groups of `size` hosts inside one rack each: the first of every rack, then the second, ..."""
    groups = [[rack[first : first + size] for first in range(0, len(rack) - size + 1, size)] for rack in racks]
    return [group for turn in zip_longest(*groups) for group in turn if group is not None]
