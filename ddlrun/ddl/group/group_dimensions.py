"""The dimensions of a process group: the members of a host, the hosts of a rack, and racks; or its unequal hosts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import dimension_algorithm
from ddlrun.ddl.group.dimensions import coords_of, peers_of, rank_at
from ddlrun.ddl.launch_context import parse_order
from ddlrun.ddl.schedules.schedule import Dimension
from ddlrun.ddl.selection.unequal_links import HostGroups, with_racks
from ddlrun.errors import InputError
from ddlrun.topology import AXES, RankOrder, Topology, parse_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # A host: the numbers of its aisle, if there are several, of its rack, and of the first member on it.
    Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupDimensions:
    """The dimensions of a group from the view of a member.

    dimensions: by their letters. order: the member of each block, in the order of the blocks in a reduce-scatter over
    the dimensions. hosts: the members of each host and the racks, which an allreduce follows where they are unequal.
    topology: the sizes of the dimensions.
    """

    dimensions: dict[str, Dimension]
    order: list[int]
    hosts: HostGroups
    topology: Topology

    @property
    def leaving(self) -> str:
        """The dimensions between hosts: all but the first one."""
        return "".join(self.dimensions)[1:] if len(self.hosts.ranks) > 1 else ""

    @property
    def host_place(self) -> int | None:
        """The place of this member's host in the last dimension, if that is the one between all hosts, else None."""
        *_, last = [line for line in self.dimensions.values() if len(line.peers) > 1] or self.dimensions.values()
        return last.me if len(last.peers) == len(self.hosts.ranks) else None


def find_dimensions(
    hosts: Sequence[str], numbers: Sequence[int], *, rank: int, environ: Mapping[str, str], mode: str = "r"
) -> GroupDimensions:
    """Return the dimensions of a group, which are equal on all members.

    Where the members of the hosts, or the hosts of the racks, are unequal, they are divided into equal parts, except in
    an allreduce.

    Args:
        hosts: The host of each member.
        numbers: The rank of each member in the job.
        rank: This member.
        environ: Has the topology of the job, or its unequal racks.
        mode: The mode whose algorithms the dimensions have before any measurement.
    """
    first = [hosts.index(host) for host in hosts]
    racks = _find_racks(first, numbers, environ)
    places = [(*rack, member) for rack, member in zip(racks, first, strict=True)]
    members = sorted(range(len(hosts)), key=places.__getitem__)
    topology = _find_topology(places)
    coords = coords_of(topology, RankOrder.HOST, members.index(rank))
    lines = [[members[at] for at in peers_of(topology, RankOrder.HOST, coords, axis)] for axis in range(len(coords))]
    blocks = (coords_of(topology, RankOrder.DDL, block) for block in range(topology.size))
    return GroupDimensions(
        {axis: _dimension(line, rank, mode) for axis, line in zip(AXES, lines, strict=False)},
        [members[rank_at(topology, RankOrder.HOST, block)] for block in blocks],
        with_racks(_group_hosts([(places[member], member) for member in members]), environ),
        topology,
    )


def _group_hosts(members: Sequence[tuple[Place, int]]) -> HostGroups:
    """Return the hosts of members in the order of their places."""
    hosts: dict[Place, tuple[int, ...]] = {}
    for place, member in members:
        hosts[place] = (*hosts.get(place, ()), member)
    racks = Counter(place[:-1] for place in hosts)
    return HostGroups(tuple(hosts.values()), tuple(racks.values()))


def _find_racks(first: Sequence[int], numbers: Sequence[int], environ: Mapping[str, str]) -> list[Place]:
    """Return the aisle and the rack of each member, if the topology of the job has the same hosts; else ()."""
    try:
        topology = parse_topology(environ.get("DDLRUN_TOPOLOGY", ""))
        order = parse_order(environ.get("DDLRUN_RANK_ORDER", "ddl"))
    except InputError:
        return [()] * len(numbers)
    coords = [coords_of(topology, order, number)[1:] for number in numbers]
    pairs = {*zip(first, coords, strict=True)}
    if max(numbers) < topology.size and len(pairs) == len({*first}) == len({*coords}):
        return [place[:0:-1] for place in coords]
    return [()] * len(numbers)


def _find_topology(places: Sequence[Place]) -> Topology:
    """Return the members of a host x the hosts of a rack x racks; unequal ones are divided into equal parts.

    >>> str(_find_topology([(0, 0), (0, 0), (0, 2), (0, 2), (1, 4), (1, 4), (1, 6), (1, 6)]))
    '2x2x2'
    >>> str(_find_topology([(0,), (0,), (0,), (0,), (4,), (4,)]))
    '2x3x1'
    """
    sizes, counts = list[int](), Counter(places)
    for _ in range(len(places[0])):
        sizes.append(math.gcd(*counts.values()))
        outer = Counter[tuple[int, ...]]()
        for place, count in counts.items():
            outer[place[:-1]] += count // sizes[-1]
        counts = outer
    return Topology((*sizes, *counts.values()))


def _dimension(peers: Sequence[int], rank: int, mode: str) -> Dimension:
    return Dimension(tuple(peers), peers.index(rank), dimension_algorithm(mode, len(peers)))
