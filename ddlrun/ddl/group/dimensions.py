"""The grid of learners: the position of a rank in X x Y x Z, and its peers in each dimension."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, cast

from ddlrun.allreduce_algorithms import dimension_algorithm
from ddlrun.ddl.schedules.schedule import Dimension
from ddlrun.ddl.transports.communicators import SingleRank
from ddlrun.errors import InputError
from ddlrun.topology import AXES, RankOrder, Topology

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator


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


class Grid:
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
        self.rank, self.size = self.base.rank, self.base.size
        if topology.size != self.size:
            raise InputError(f"grid {topology}: invalid dim size: {topology.size} learners, but {self.size} ranks")
        self.topology, self.order = topology, order
        self.coords = coords_of(topology, order, self.rank)
        self._communicators: dict[str, Communicator] = {}
        for axis in self.axes:
            self.members(axis)

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
        return rank_at(self.topology, RankOrder.DDL, coords_of(self.topology, self.order, rank))

    def host_index_of(self, rank: int) -> int:
        """Return the number that a rank has in host order."""
        return rank_at(self.topology, RankOrder.HOST, coords_of(self.topology, self.order, rank))

    def peers(self, axis: str) -> tuple[int, ...]:
        """Return the ranks that differ from this one in one dimension only, and this one, in the dimension's order.

        Args:
            axis: The letter of the dimension, such as "X".

        Raises:
            InputError: The grid has no dimension of that letter.
        """
        return peers_of(self.topology, self.order, self.coords, self._number(axis))

    def dimensions(self, mode: str) -> dict[str, Dimension]:
        """Return the dimensions by their letters, with the algorithms of a mode before any measurement."""
        lines = zip(self.axes, map(self.peers, self.axes), self.coords, strict=True)
        return {axis: Dimension(peers, at, dimension_algorithm(mode, len(peers))) for axis, peers, at in lines}

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

    def places(self, axes: str) -> list[int]:
        """Return the numbers of dimensions, ascending. Raises InputError if the grid has no dimension of a letter."""
        return sorted({self._number(axis) for axis in axes})

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

    def _number(self, axis: str) -> int:
        if len(axis) != 1 or axis not in self.axes:
            raise InputError(f"grid {self.topology}: no dimension {axis!r}; there are {', '.join(self.axes)}")
        return self.axes.index(axis)
