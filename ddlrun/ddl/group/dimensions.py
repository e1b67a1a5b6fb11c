"""Dimensions of a group: the position of a rank in X x Y x Z, its peers in each dimension, and the hosts.

A grid is that of all learners. In a process group X are the members of a host, Y the hosts of a rack, and Z racks.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, cast

from ddlrun.allreduce_algorithms import dimension_algorithm
from ddlrun.ddl.launch_context import parse_order
from ddlrun.ddl.schedules.schedule import Dimension
from ddlrun.ddl.selection.unequal_links import HostGroups, with_racks
from ddlrun.ddl.transports.communicators import SingleRank
from ddlrun.errors import InputError
from ddlrun.topology import AXES, RankOrder, Topology, parse_topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator

    # A host: the numbers of its aisle, if there are several, of its rack, and of the first member on it.
    Place = tuple[int, ...]


def coords_of(topology: Topology, order: RankOrder, rank: int) -> tuple[int, ...]:
    """Return the position (x, y, z[, a]) of a rank, the inverse of `rank_at`.

    >>> coords_of(Topology((4, 2, 3)), RankOrder.DDL, 6), coords_of(Topology((4, 2, 3)), RankOrder.HOST, 6)
    ((1, 0, 0), (2, 1, 0))
    """
    if order is RankOrder.HOST:
        host_index, x = divmod(rank, topology.ranks_per_host)
        return (x, *topology.host_coords(host_index))
    coords = []
    for size in reversed(topology.dims):
        rank, at = divmod(rank, size)
        coords.append(at)
    return tuple(reversed(coords))


def rank_at(topology: Topology, order: RankOrder, coords: tuple[int, ...]) -> int:
    """Return the rank at a position (x, y, z[, a])."""
    sizes_and_coords = list(zip(topology.dims[1:], coords[1:], strict=True))[::-1]
    host_index = reduce(lambda index, pair: index * pair[0] + pair[1], sizes_and_coords, 0)
    return topology.rank(host_index, coords[0], order)


def peers_of(topology: Topology, order: RankOrder, coords: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the ranks that differ from `coords` in dimension number `axis` only, in the order of that dimension."""
    positions = ((*coords[:axis], at, *coords[axis + 1 :]) for at in range(topology.dims[axis]))
    return tuple(rank_at(topology, order, position) for position in positions)


class GroupDimensions:
    """The dimensions of a group from the view of a rank.

    Args:
        topology: The sizes of the dimensions.
        ranks: The rank at each position, in host order.
        rank: This rank.
    """

    def __init__(self, topology: Topology, ranks: Iterable[int], rank: int) -> None:
        self.topology, self.rank, self.ranks = topology, rank, tuple(ranks)
        self._places = {rank: place for place, rank in enumerate(self.ranks)}
        self.coords = self.coords_of(rank)

    @property
    def axes(self) -> str:
        """The letters of the dimensions: XYZ or XYZA."""
        return "".join(AXES[: len(self.topology.dims)])

    @property
    def index(self) -> int:
        """The number (x*Y + y)*Z + z of this learner's block in a reduce-scatter, which is its rank in ddl order."""
        return self.index_of(self.rank)

    def index_of(self, rank: int) -> int:
        """Return the number of a rank's block in a reduce-scatter."""
        return rank_at(self.topology, RankOrder.DDL, self.coords_of(rank))

    def host_index_of(self, rank: int) -> int:
        """Return the number that a rank has in host order."""
        return self._places[rank]

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """Return the position (x, y, z[, a]) of a rank."""
        return coords_of(self.topology, RankOrder.HOST, self._places[rank])

    def peers(self, axis: str) -> tuple[int, ...]:
        """Return the ranks that differ from this one in one dimension only, and this one, in the dimension's order.

        Args:
            axis: The letter of the dimension, such as "X".

        Raises:
            InputError: The grid has no dimension of that letter.
        """
        places = peers_of(self.topology, RankOrder.HOST, self.coords, self._number(axis))
        return tuple(self.ranks[place] for place in places)

    def dimensions(self, mode: str) -> dict[str, Dimension]:
        """Return the dimensions by their letters, with the algorithms of a mode before any measurement."""
        lines = zip(self.axes, map(self.peers, self.axes), self.coords, strict=True)
        return {axis: Dimension(peers, at, dimension_algorithm(mode, len(peers))) for axis, peers, at in lines}

    def places(self, axes: str) -> list[int]:
        """Return the numbers of dimensions, ascending. Raises InputError if the grid has no dimension of a letter."""
        return sorted({self._number(axis) for axis in axes})

    def group_hosts(self, host_of: Sequence[object]) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each host, in host order; `host_of` has the host of each rank."""
        hosts: dict[object, list[int]] = {}
        for rank in self.ranks:
            hosts.setdefault(host_of[rank], []).append(rank)
        return tuple(map(tuple, hosts.values()))

    def leaving(self, hosts: HostGroups) -> str:
        """Return the dimensions in which some rank has a peer on another host."""
        places = [(host, self.coords_of(rank)) for host, ranks in enumerate(hosts.ranks) for rank in ranks]
        # Without its place in a dimension, a position stands for all peers there.
        parts = [{(host, at[:axis], at[axis + 1 :]) for host, at in places} for axis in range(len(self.axes))]
        return "".join(axis for axis, of in zip(self.axes, parts, strict=True) if len(of) > len({it[1:] for it in of}))

    def host_place(self, hosts: HostGroups) -> int | None:
        """Return the place of this rank's host in the last dimension, if that is the one between all hosts."""
        axis = max((at for at, size in enumerate(self.topology.dims) if size > 1), default=0)
        places = [{self.coords_of(rank)[axis] for rank in ranks} for ranks in hosts.ranks]
        is_between_all = self.topology.dims[axis] == len(places) and all(len(of_host) == 1 for of_host in places)
        return self.coords[axis] if is_between_all else None

    def _number(self, axis: str) -> int:
        if len(axis) != 1 or axis not in self.axes:
            raise InputError(f"grid {self.topology}: no dimension {axis!r}; there are {', '.join(self.axes)}")
        return self.axes.index(axis)


class Grid(GroupDimensions):
    """The learners of a communicator as X x Y x Z, with one communicator per dimension.

    All ranks create it together, and free it with `free` or `with`.

    Args:
        topology: The dimensions.
        order: The rank order of the job.
        comm: The communicator, which stays the caller's. Without one the grid is a single learner.

    Raises:
        InputError: The product of the dimensions is not the number of ranks.
    """

    def __init__(self, topology: Topology, order: RankOrder, comm: Communicator | None = None) -> None:
        self.base: Communicator = SingleRank() if comm is None else comm
        self.size, self.order = self.base.size, order
        if topology.size != self.size:
            raise InputError(f"grid {topology}: invalid dim size: {topology.size} learners, but {self.size} ranks")
        ranks = (rank for host in range(topology.hosts) for rank in topology.ranks_of(host, order))
        super().__init__(topology, ranks, self.base.rank)
        self._communicators: dict[str, Communicator] = {}
        for axis in self.axes:
            self.members(axis)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    def communicator(self, axes: str) -> Intracomm:
        """Return the communicator of the learners that differ from this one in `axes` only, such as "X" or "YZ".

        Its ranks are in host order, so ranks of a host are adjacent whatever the rank order of the job. The grid frees
        it. Over TCP it has mpi4py's methods for objects alone, such as allgather and bcast.

        Args:
            axes: Letters of dimensions. With several letters, all learners call this together the first time.

        Raises:
            InputError: The grid has no dimension of a letter, or is a single learner without MPI.
        """
        if self.size == 1:
            raise InputError(f"grid {self.topology}: no communicator {axes!r}: a single learner runs without MPI")
        return cast("Intracomm", self.members(axes))

    def members(self, axes: str) -> Communicator:
        """Return the communicator of some axes: see `communicator`."""
        name = "".join(self.axes[i] for i in self.places(axes))
        if name not in self._communicators:
            fixed = [0 if axis in name else at for axis, at in zip(self.axes, self.coords, strict=True)]
            color = rank_at(self.topology, RankOrder.DDL, tuple(fixed))
            self._communicators[name] = self.base.Split(color, self.host_index_of(self.rank))
        return self._communicators[name]

    def along(self, axes: str) -> dict[int, Communicator]:
        """Return the communicators of the dimensions in `axes` ("": all) with several learners, by their numbers."""
        comms = {number: self.members(self.axes[number]) for number in self.places(axes or self.axes)}
        return {number: comm for number, comm in comms.items() if comm.size > 1}

    def free(self) -> None:
        """Free the communicators of the grid. A second call does nothing."""
        while self._communicators:
            self._communicators.popitem()[1].Free()

    def __enter__(self) -> Grid:  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.free()


def find_dimensions(
    hosts: Sequence[str], numbers: Sequence[int], *, rank: int, environ: Mapping[str, str]
) -> tuple[GroupDimensions, HostGroups]:
    """Return the dimensions of a process group, and its hosts, which are equal on all members.

    Where the members of the hosts, or the hosts of the racks, are unequal, they are divided into equal parts, except in
    an allreduce.

    Args:
        hosts: The host of each member.
        numbers: The rank of each member in the job.
        rank: This member.
        environ: Has the topology of the job, or its unequal racks.
    """
    first = [hosts.index(host) for host in hosts]
    racks = _find_racks(first, numbers, environ)
    places = [(*rack, member) for rack, member in zip(racks, first, strict=True)]
    members = sorted(range(len(hosts)), key=places.__getitem__)
    dimensions = GroupDimensions(_find_topology(places), members, rank)
    counts = Counter(place[:-1] for place in dict.fromkeys(places[member] for member in members))
    groups = HostGroups(dimensions.group_hosts(places), tuple(counts.values()))
    return dimensions, with_racks(groups, environ)


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
