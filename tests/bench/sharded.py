"""Reduce-scatters and allgathers to compare ddlrun's with, by the names `rs:NAME` and `ag:NAME`.

`rs:p` and the like is ddlrun in a mode, or MODE=TUNING; `rs:gloo` and `rs:torch-ddl` are torch.distributed over the
backends gloo and ddl, `rs:mpi` is the MPI library. Except in ddlrun's own, block i belongs to rank i.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.schedules.partition import block_bounds
from tests.bench.baselines import WORLD, Algorithm, Array, Ours, make_algorithm


class ReduceScatter(Algorithm):
    """A reduce-scatter: the result is the block `bounds` of the sum."""

    bounds: tuple[int, int]

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        self.bounds = block_bounds(count, WORLD.size)[WORLD.rank : WORLD.rank + 2]  # type: ignore[assignment]

    def is_correct(self, result: Array, exact: Array) -> bool:
        return bool((result == exact[slice(*self.bounds)]).all())


class Allgather(ReduceScatter):
    """An allgather: the result is the array, with the block of each rank."""

    def is_correct(self, result: Array, exact: Array) -> bool:
        base = exact / np.float32(WORLD.size * (WORLD.size + 1) / 2)
        bounds = block_bounds(len(base), WORLD.size)
        blocks = zip(self.owners(), bounds, bounds[1:], strict=False)
        return all((result[low:high] == base[low:high] * (owner + 1)).all() for owner, low, high in blocks)

    def owners(self) -> list[int]:
        """Return the rank that each block belongs to."""
        return list(range(WORLD.size))


class OurReduceScatter(ReduceScatter):
    """The reduce-scatter of ddlrun."""

    def __init__(self, text: str) -> None:
        self._learner: Any = Ours(text)._learner  # noqa: SLF001

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        self.run(np.zeros(count, np.float32))
        self.bounds = self._learner.piece(count)

    def run(self, x: Array) -> Array:
        result: Array = self._learner.reduce_scatter(x, "sum")
        return result


class OurAllgather(Allgather, OurReduceScatter):
    """The allgather of ddlrun."""

    def run(self, x: Array) -> Array:
        result: Array = self._learner.allgather_pieces(x)
        return result

    def owners(self) -> list[int]:
        grid = self._learner.grid
        places = [grid.index_of(rank) for rank in range(grid.size)]
        return [places.index(block) for block in range(grid.size)]


class MpiReduceScatter(ReduceScatter):
    """MPI_Reduce_scatter on the world."""

    def run(self, x: Array) -> Array:
        bounds = block_bounds(len(x), WORLD.size)
        counts = [high - low for low, high in zip(bounds, bounds[1:], strict=False)]
        block = np.empty(counts[WORLD.rank], x.dtype)
        WORLD.Reduce_scatter(x, block, counts)
        return block


class MpiAllgather(Allgather):
    """MPI_Allgather on the world, in place."""

    def run(self, x: Array) -> Array:
        WORLD.Allgather(MPI.IN_PLACE, x)
        return x


class TorchReduceScatter(ReduceScatter):
    """torch.distributed's reduce-scatter over the group of an allreduce of `tests.bench.baselines`."""

    def __init__(self, allreduce: str) -> None:
        base: Any = make_algorithm(allreduce)
        self._dist, self._tensor, self._group = base._dist, base._tensor, base._group  # noqa: SLF001

    def run(self, x: Array) -> Array:
        block = np.empty(len(x) // WORLD.size, x.dtype)
        self._dist.reduce_scatter_single(self._tensor(block), self._tensor(x), group=self._group)
        return block


class TorchAllgather(Allgather, TorchReduceScatter):
    """torch.distributed's allgather over a backend."""

    def run(self, x: Array) -> Array:
        block = self._tensor(x[slice(*self.bounds)])
        self._dist.all_gather_single(self._tensor(x), block, group=self._group)
        return x


OTHERS: dict[str, Callable[[], Algorithm]] = {
    "rs:mpi": MpiReduceScatter, "ag:mpi": MpiAllgather,
    "rs:gloo": partial(TorchReduceScatter, "gloo"), "ag:gloo": partial(TorchAllgather, "gloo"),
    "rs:torch-ddl": partial(TorchReduceScatter, "torch-ddl"), "ag:torch-ddl": partial(TorchAllgather, "torch-ddl"),
}  # fmt: skip
OURS = {"rs:": OurReduceScatter, "ag:": OurAllgather}


def make(text: str) -> Algorithm:
    """Make an algorithm by its name: see above, or `tests.bench.baselines`."""
    if text in OTHERS:
        return OTHERS[text]()
    prefix, name = text[:3], text[3:]
    return OURS[prefix](name) if prefix in OURS else make_algorithm(text)
