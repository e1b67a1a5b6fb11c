"""What ddlrun's allreduce is compared with. All ranks make these and call their methods together.

`mpi` is MPI_Allreduce on the world, `mpi-host` on a communicator in host order: whatever Open MPI chooses, coll/tuned
in 4.1, coll/han between hosts in 5.0. `tuned` and `han` are these components chosen by hand, `tuned-best` the best of
tuned's algorithms, chosen anew at each size. `two-level` does by MPI what Horovod's hierarchical allreduce does.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.dimensions import Grid
from ddlrun.ddl.partition import block_bounds
from tests.bench.mpi_control import force, prefer

WORLD = MPI.COMM_WORLD
Array = np.ndarray[Any, Any]
# Recursive doubling, ring, segmented ring, Rabenseifner; basic linear and reduce + broadcast are left out.
FORCED = (3, 4, 5, 6)
SEGMENT = 2**20  # what tuned takes by itself for the segmented ring
# From this size in bytes on, an algorithm that takes twice as long as the best is not tried at larger ones.
TELLING = 2**20


class Algorithm:
    """An allreduce of float32."""

    note = ""
    # How far off a sum may be, relative: nothing, but where it travels in 16 bits.
    off = 0.0

    def get_ready(self, count: int, repeat: int) -> None:
        """Prepare for arrays of `count` elements that will be reduced `repeat` times in a row."""

    def turn(self) -> AbstractContextManager[None]:
        """Return what must be around the runs, and is not timed."""
        return nullcontext()

    def run(self, x: Array) -> Array:
        """Return the sum, in x or elsewhere."""
        raise NotImplementedError

    def right(self, result: Array, exact: Array) -> bool:
        """Say whether a sum is what it should be."""
        return bool((np.abs(result - exact) <= self.off * exact).all())


class Ours(Algorithm):
    """ddlrun's own, by a mode or a whole DDL string, with a tuning."""

    def __init__(self, text: str) -> None:
        mode, _, tuning = text.partition("=")
        self._learner = start_learner(f"-mode {mode}", WORLD, tuning, os.environ)
        self.off = WORLD.size * 2.0**-8 * ("wire=" in tuning)

    def get_ready(self, count: int, repeat: int) -> None:  # noqa: ARG002 - as all
        self.run(np.zeros(count, np.float32))  # mode p explores at the first of each size

    def run(self, x: Array) -> Array:
        self._learner.all_reduce(x, "sum", "", True)
        return x


class Native(Algorithm):
    """MPI_Allreduce on a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def run(self, x: Array) -> Array:
        self._comm.Allreduce(MPI.IN_PLACE, x)
        return x


class OutOfPlace(Native):
    """The same from one array to another: coll/han of Open MPI 4.1.4 crashes in place."""

    def get_ready(self, count: int, repeat: int) -> None:  # noqa: ARG002 - as all
        self._sum = np.zeros(count, np.float32)

    def run(self, x: Array) -> Array:
        self._comm.Allreduce(x, self._sum)
        return self._sum


class BestForced(Algorithm):
    """The best of coll/tuned's algorithms at each size, by a run or three of each."""

    def __init__(self) -> None:
        self._comms = {number: force(WORLD, number, SEGMENT * (number == 5)) for number in FORCED}
        self._left = list(FORCED)
        self._best = FORCED[0]

    def get_ready(self, count: int, repeat: int) -> None:
        x = np.zeros(count, np.float32)
        took = {number: self._seconds(number, x, repeat) for number in self._left}
        least = min(took.values())
        for number in [number for number in took if took[number] < 1.2 * least] * 2:
            took[number] = min(took[number], self._seconds(number, x, repeat))
        self._best = min(took, key=took.__getitem__)
        self.note = f"algorithm {self._best} of " + ", ".join(f"{number}: {took[number]:.3g} s" for number in took)
        if x.nbytes >= TELLING:
            self._left = [number for number in took if took[number] < 2 * took[self._best]]

    def run(self, x: Array) -> Array:
        self._comms[self._best].Allreduce(MPI.IN_PLACE, x)
        return x

    def _seconds(self, number: int, x: Array, repeat: int) -> float:
        WORLD.Barrier()
        start = MPI.Wtime()
        for _ in range(repeat):
            self._comms[number].Allreduce(MPI.IN_PLACE, x)
        slowest: float = WORLD.allreduce((MPI.Wtime() - start) / repeat, MPI.MAX)
        return slowest


class TwoLevel(Algorithm):
    """A reduce-scatter on each host, an allreduce over the hosts of each piece, an allgather on each host."""

    def __init__(self, grid: Grid) -> None:
        self._local, self._across = grid.communicator("X"), grid.communicator(grid.axes.replace("X", ""))

    def get_ready(self, count: int, repeat: int) -> None:  # noqa: ARG002 - as all
        bounds = block_bounds(count, self._local.size)
        self._counts = [high - low for low, high in zip(bounds, bounds[1:], strict=False)]
        self._piece = np.zeros(self._counts[self._local.rank], np.float32)

    def run(self, x: Array) -> Array:
        self._local.Reduce_scatter(x, self._piece, self._counts)
        self._across.Allreduce(MPI.IN_PLACE, self._piece)
        self._local.Allgatherv(self._piece, [x, self._counts])
        return x


class Horovod(Algorithm):
    """Horovod's, on torch tensors; its thread talks to the others all the time, so it lives in its turns alone."""

    def __init__(self) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - not everybody has it
        import torch  # noqa: PLC0415 - it takes a second

        torch.set_num_threads(1)
        self._hvd, self._tensor = hvd, torch.from_numpy
        with self.turn():
            if not hvd.mpi_built():
                raise ImportError("Horovod without MPI")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self._hvd.init()
        yield
        self._hvd.shutdown()

    def run(self, x: Array) -> Array:
        self._hvd.allreduce_(self._tensor(x), op=self._hvd.Sum, name="x")
        return x


class Gloo(Algorithm):
    """torch.distributed's all_reduce over gloo, on torch tensors."""

    def __init__(self, *, one_host: bool) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if one_host else "eth0"
        import torch  # noqa: PLC0415 - it takes a second
        import torch.distributed as dist  # noqa: PLC0415

        torch.set_num_threads(1)
        address = WORLD.bcast("127.0.0.1" if one_host else socket.gethostbyname(socket.gethostname()))
        port = WORLD.bcast(free_port(address) if WORLD.rank == 0 else 0)
        at = f"tcp://{address}:{port}"
        dist.init_process_group("gloo", init_method=at, rank=WORLD.rank, world_size=WORLD.size)
        self._dist, self._tensor = dist, torch.from_numpy

    def run(self, x: Array) -> Array:
        self._dist.all_reduce(self._tensor(x))
        return x


def free_port(address: str) -> int:
    with socket.socket() as server:
        server.bind((address, 0))
        port: int = server.getsockname()[1]
        return port


def algorithm(text: str) -> Algorithm:
    """Make one by its name, else by a DDL mode with `=TUNING`. Raises ImportError where its package is missing."""
    learner = start_learner("-mode r", WORLD, "", os.environ)
    grid = learner.grid
    makers: dict[str, Callable[[], Algorithm]] = {
        "mpi": lambda: Native(WORLD),
        "mpi-host": lambda: Native(grid.communicator(grid.axes)),
        "tuned": lambda: Native(prefer(WORLD, "tuned,^han")),
        "tuned-best": BestForced,
        "han": lambda: OutOfPlace(prefer(WORLD, "han")),
        "two-level": lambda: TwoLevel(grid),
        "horovod": Horovod,
        "gloo": lambda: Gloo(one_host=learner.host.hosts == 1),
    }
    return makers[text]() if text in makers else Ours(text)
