"""Hosts whose racks are known: their order, and the Y and Z that the racks make."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from ddlrun.hosts import Host, HostList, fold
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.topology import Topology

Rack = Sequence[Host]


class RackLayout(NamedTuple):
    """The hosts that take part, rack by rack, the wish with Y and Z worked out, and who is left out."""

    hosts: HostList
    wish: TopologyRequest
    left_out: tuple[Host, ...] = ()
    said: tuple[str, ...] = ()
    """What was done, and why, in words."""


def by_rack(hosts: HostList) -> dict[str, list[Host]]:
    """Return the hosts of each rack, racks and hosts in the order of the list; nothing where any rack is unknown."""
    racks: dict[str, list[Host]] = {}
    for host in hosts:
        if host.rack is None:
            return {}
        racks.setdefault(host.rack, []).append(host)
    return racks


def shape_reason(hosts: HostList) -> str:
    """Say where Y and Z come from, where nobody asked for them."""
    known = all(host.rack for host in hosts)
    return f"{'the racks' if known else 'one rack, as nothing says the racks'} of {hosts.source}"


def arrange(wish: TopologyRequest, hosts: HostList, *, choose: bool = False) -> RackLayout:
    """Order hosts by rack and work out Y and Z, as far as the wish leaves them open.

    Y is the size of the racks; where they differ, their greatest common divisor, so that no host is left out
    and no group of Y leaves its rack; without one, all hosts are one group. A --topology that needs fewer
    hosts than there are takes whole groups from the racks: where racks are known, or with `choose`.
    """
    racks = by_rack(hosts)
    said = _unknown(hosts)
    if wish.topology is not None:
        return _as_told(wish, wish.topology, hosts, list(racks.values()), said, choose=choose or bool(racks))
    if not racks:
        return RackLayout(hosts, wish, said=said)
    ordered = hosts.take(host for rack in racks.values() for host in rack)
    if ordered.names != hosts.names:
        said = (*said, f"hosts in the order of their racks: {ordered}")
    if wish.nodes or wish.racks or wish.aisles:
        size = wish.nodes or max(1, len(hosts) // ((wish.racks or 1) * (wish.aisles or 1)))
        whole, groups = sum(len(rack) // size for rack in racks.values()), len(hosts) // size
        return RackLayout(ordered, wish, said=(*said, _crossing(whole, size, groups)) if whole < groups else said)
    per_rack, words = _common_size(racks)
    return RackLayout(ordered, wish._replace(nodes=per_rack, racks=len(hosts) // per_rack), said=(*said, *words))


def _unknown(hosts: HostList) -> tuple[str, ...]:
    without = [host.name for host in hosts if host.rack is None]
    if not without or len(without) == len(hosts):
        return ()
    return (f"racks are left alone: nothing says the rack of {fold(without)}",)


def _crossing(whole: int, size: int, groups: int) -> str:
    """Say how many groups of hosts are not in one rack each."""
    return f"{groups - whole} of {groups} group{'s' * (groups > 1)} of {size} hosts cross racks"


def _common_size(racks: dict[str, list[Host]]) -> tuple[int, list[str]]:
    sizes = [len(rack) for rack in racks.values()]
    total, common = sum(sizes), math.gcd(*sizes)
    if len(set(sizes)) == 1:
        return common, []
    listed = f"racks {', '.join(f'{name} ({len(rack)} hosts)' for name, rack in list(racks.items())[:8])}"
    if common > 1:
        return common, [
            f"{listed} are not equal: taken as {total // common} groups of {common} hosts, none across racks"
        ]
    per_rack, count = max(
        ((size, sum(other // size for other in sizes)) for size in range(2, max(sizes) + 1)),
        key=lambda shape: (shape[0] * shape[1], shape[0]),
    )
    out = [host.name for rack in racks.values() for host in rack[len(rack) // per_rack * per_rack :]]
    best = f"--topology Xx{per_rack}x{count} would keep to racks and leave out {fold(out)}"
    return total, [f"{listed} have no common size: all {total} hosts are taken as one rack; {best}"]


def _as_told(
    wish: TopologyRequest,
    topology: Topology,
    hosts: HostList,
    racks: Sequence[Rack],
    said: tuple[str, ...],
    *,
    choose: bool,
) -> RackLayout:
    """Take the hosts of a topology: groups of Y that do not leave their racks, if there are enough."""
    if not choose or len(hosts) < topology.hosts:
        ordered = [host for rack in racks for host in rack] or list(hosts)
        return RackLayout(hosts.take(ordered), wish, said=said)
    per_rack, count = topology.dims[1], topology.hosts // topology.dims[1]
    groups = [[rack[at : at + per_rack] for at in range(0, len(rack) - per_rack + 1, per_rack)] for rack in racks]
    # One of each rack first; then a second one.
    taken = [group for turn in zip_longest(*groups) for group in turn if group is not None][:count]
    if len(taken) == count:
        chosen = {host.name for group in taken for host in group}
    else:
        chosen = {host.name for host in [host for rack in racks or [list(hosts)] for host in rack][: topology.hosts]}
        if racks and per_rack > 1:
            said = (*said, _crossing(len(taken), per_rack, count))
    ordered = [host for rack in racks or [list(hosts)] for host in rack]
    out = tuple(host for host in ordered if host.name not in chosen)
    if out:
        said = (
            *said,
            f"left out, as --topology {topology} needs {topology.hosts} hosts: {fold(one.name for one in out)}",
        )
    return RackLayout(hosts.take(host for host in ordered if host.name in chosen), wish, out, said)
