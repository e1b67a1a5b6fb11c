"""The grid of learners: where a rank stands in X x Y x Z, and who differs from it in one dimension alone."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, cast

from ddlrun.errors import InputError
from ddlrun.topology import AXES, RankOrder, Topology

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py.MPI import Intracomm


def coords_of(topology: Topology, order: RankOrder, rank: int) -> tuple[int, ...]:
    """Return (x, y, z[, a]) of a rank, the inverse of Topology.rank.

    >>> coords_of(Topology((4, 2, 3)), RankOrder.DDL, 6), coords_of(Topology((4, 2, 3)), RankOrder.HOST, 6)
    ((1, 0, 0), (2, 1, 0))
    """
    if order is RankOrder.HOST:
        host_index, x = divmod(rank, topology.accelerators)
        return (x, *topology.host_coords(host_index))
    coords = []
    for size in reversed(topology.dims):
        rank, at = divmod(rank, size)
        coords.append(at)
    return tuple(reversed(coords))


def rank_at(topology: Topology, order: RankOrder, coords: tuple[int, ...]) -> int:
    """Return the rank at (x, y, z[, a])."""
    host_index = reduce(lambda index, pair: index * pair[0] + pair[1], _pairs(topology, coords), 0)
    return topology.rank(host_index, coords[0], order)


def peers_of(topology: Topology, order: RankOrder, coords: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the ranks that differ from `coords` in one dimension alone, in the order of that dimension."""
    around = ((*coords[:axis], at, *coords[axis + 1 :]) for at in range(topology.dims[axis]))
    return tuple(rank_at(topology, order, place) for place in around)


def _pairs(topology: Topology, coords: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(topology.dims[1:], coords[1:], strict=True))[::-1]


class Grid:
    """The learners of a communicator as X x Y x Z, one communicator a dimension.

    Without a communicator it is a single learner. Made by all ranks together; free it, or use `with`. The
    communicator that is passed in stays the caller's. Raises InputError if the shape is not the number of ranks.
    """

    def __init__(self, topology: Topology, order: RankOrder, comm: Intracomm | None = None) -> None:
        size = 1 if comm is None else comm.size
        if topology.size != size:
            raise InputError(f"grid {topology}: invalid dim size: {topology.size} learners, but {size} ranks")
        self.topology, self.order = topology, order
        self.rank, self.size = (0, 1) if comm is None else (comm.rank, comm.size)
        self.coords = coords_of(topology, order, self.rank)
        self.base = comm
        self._made: dict[str, Intracomm] = {}
        if comm is not None:
            for axis in self.axes:
                self.communicator(axis)

    @property
    def axes(self) -> str:
        """Return the letters of the dimensions: XYZ or XYZA."""
        return "".join(AXES[: len(self.topology.dims)])

    @property
    def index(self) -> int:
        """Return ((x*Y + y)*Z + z): its place among the blocks of a reduce-scatter, its rank in ddl order."""
        return self.index_of(self.rank)

    def index_of(self, rank: int) -> int:
        """Return the place of a rank among the blocks of a reduce-scatter."""
        return rank_at(self.topology, RankOrder.DDL, coords_of(self.topology, self.order, rank))

    def host_index_of(self, rank: int) -> int:
        """Return the number that a rank would have in host order."""
        return rank_at(self.topology, RankOrder.HOST, coords_of(self.topology, self.order, rank))

    def peers(self, axis: str) -> tuple[int, ...]:
        """Return the ranks of this learner's group in one dimension, in its order."""
        return peers_of(self.topology, self.order, self.coords, self._axis(axis))

    def communicator(self, axes: str) -> Intracomm:
        """Return the communicator of the learners that differ from this one in `axes` alone, such as "X" or "YZ".

        Those of one dimension are there; for more, all learners call this together the first time. Ranks in it
        are in host order: those of a host adjoin, whatever the order of the ranks. The grid frees it.
        """
        if self.base is None:
            raise InputError(f"grid {self.topology}: no communicator {axes!r}: a single learner runs without MPI")
        wanted = "".join(self.axes[i] for i in self.places(axes))
        if wanted not in self._made:
            fixed = [0 if axis in wanted else at for axis, at in zip(self.axes, self.coords, strict=True)]
            color = rank_at(self.topology, RankOrder.DDL, tuple(fixed))
            self._made[wanted] = cast("Intracomm", self.base.Split(color, self.host_index_of(self.rank)))
        return self._made[wanted]

    def places(self, axes: str) -> list[int]:
        """Return the numbers of dimensions, in order. Raises InputError on a letter that the grid has not."""
        return sorted({self._axis(axis) for axis in axes})

    def free(self) -> None:
        """Free the communicators that the grid made; does no harm twice."""
        while self._made:
            self._made.popitem()[1].Free()

    def __enter__(self) -> Grid:  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.free()

    def _axis(self, axis: str) -> int:
        if len(axis) != 1 or axis not in self.axes:
            raise InputError(f"grid {self.topology}: no dimension {axis!r}; there are {', '.join(self.axes)}")
        return self.axes.index(axis)
