"""Collectives to time, MPI's own and those of ddlrun.ddl, on float32; and the bandwidths of nccl-tests.

nccl-tests (doc/PERFORMANCE.md): the algorithm bandwidth is S/t; the bus bandwidth is that times a factor which makes it
comparable with the rate of a link for any number n of ranks: allreduce 2(n - 1)/n, reduce-scatter and allgather
(n - 1)/n, broadcast 1. S is the bytes of the array: the input of a reduce-scatter, the output of an allgather.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.allreduce_algorithms import AllreduceAlgorithm
from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.learner import Learner
from ddlrun.network.cost import CostModel
from ddlrun.network.fabric import Fabric
from ddlrun.network.message_counts import axes_of
from ddlrun.topology import Topology

FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
}
ITEM = 4
Array = Any
Run = Callable[[Array], Array]
"""Run the collective on an array; return its result.

If all elements are 1, those of the result are the number of ranks for allreduce and reduce-scatter, else 1."""


def bus_bandwidth(collective: str, size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of nccl-tests in bytes/s.

    >>> bus_bandwidth("allreduce", 1000, 1.0, 4)
    1500.0
    """
    return size / seconds * FACTORS[collective](ranks)


def least_seconds(collective: str, size: int, topology: Topology, fabric: Fabric) -> float:
    """Return the time of the busiest link for the least bytes that it must carry, without latency.

    Those of an allreduce are the volumes of network.cost along the dimensions; a reduce-scatter or an allgather has
    half of them; a broadcast sends the whole array into each host, and each rack.
    """
    if collective == "broadcast":
        crossed = (topology.ranks_per_host > 1, topology.hosts > 1, topology.hosts > topology.dims[1], False)
        volumes = [float(size) if crosses else 0.0 for crosses in crossed]
    else:
        share = 1.0 if collective == "allreduce" else 0.5
        cost = CostModel(axes_of(topology), topology, fabric).cost(AllreduceAlgorithm("native"), size)
        volumes = [share * volume for volume in cost.volumes]
    return max(volume / link.capacity for volume, link in zip(volumes, fabric.links, strict=True))


class Collectives:
    """The collectives of all ranks, (collective, algorithm) -> Run; `free` them before MPI ends."""

    def __init__(self, comm: MPI.Intracomm, modes: str, environ: Mapping[str, str]) -> None:
        self._comm = comm
        self._learners = {mode: start_learner(f"-mode {mode}", None, None, environ) for mode in modes}
        self.topology = next(iter(self._learners.values())).grid.topology
        self.runs: dict[tuple[str, str], Run] = {("allreduce", "mpi"): self._allreduce}
        self.runs |= {("allreduce", mode): _allreduce(learner) for mode, learner in self._learners.items()}
        self.runs["reduce_scatter", "mpi"] = self._reduce_scatter
        self.runs |= {("reduce_scatter", mode): _reduce_scatter(learner) for mode, learner in self._learners.items()}
        self.runs["allgather", "mpi"] = self._allgather
        self.runs |= {("allgather", mode): _allgather(learner) for mode, learner in self._learners.items()}
        self.runs["broadcast", "mpi"] = self._broadcast
        first, learner = next(iter(self._learners.items()))  # all modes broadcast alike
        self.runs["broadcast", first] = _broadcast(learner)

    def free(self) -> None:
        """Free the communicators."""
        for learner in self._learners.values():
            learner.free()

    def array(self, collective: str, size: int) -> Array:
        """Return an array of at least `size` bytes, a multiple of the ranks where MPI needs blocks of one size."""
        ranks = self._comm.size
        count = max(size // ITEM, 1)
        return np.ones(count if collective in ("allreduce", "broadcast") else math.ceil(count / ranks) * ranks, "f4")

    def is_correct(self, collective: str, run: Run, x: Array) -> bool:
        """Run a collective once on ones; return True if the result is correct on all ranks."""
        x[:] = 1
        expected = self._comm.size if collective in ("allreduce", "reduce_scatter") else 1
        correct = bool((run(x) == expected).all())
        return bool(self._comm.allreduce(correct, MPI.LAND))

    def _allreduce(self, x: Array) -> Array:
        self._comm.Allreduce(MPI.IN_PLACE, x)
        return x

    def _reduce_scatter(self, x: Array) -> Array:
        piece = np.empty(len(x) // self._comm.size, x.dtype)
        self._comm.Reduce_scatter_block(x, piece)
        return piece

    def _allgather(self, x: Array) -> Array:
        self._comm.Allgather(MPI.IN_PLACE, x)
        return x

    def _broadcast(self, x: Array) -> Array:
        self._comm.Bcast(x)
        return x


def _allreduce(learner: Learner) -> Run:
    return lambda x: learner.all_reduce(x, "sum", "", True)


def _reduce_scatter(learner: Learner) -> Run:
    return lambda x: learner.reduce_scatter(x, "sum")


def _allgather(learner: Learner) -> Run:
    return learner.allgather_pieces


def _broadcast(learner: Learner) -> Run:
    return lambda x: learner.bcast(x, 0, in_place=True)
