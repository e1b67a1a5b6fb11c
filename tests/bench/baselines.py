"""Allreduces to compare ddlrun's with. All ranks make them and call their methods together.

`mpi` is MPI_Allreduce on the world, `mpi-host` on a communicator in host order, with the component that Open MPI
chooses: coll/tuned in 4.1, coll/han between hosts in 5.0. `tuned` and `han` force these components; `tuned-best` is the
best of tuned's algorithms at each size. `tcp` and `tcp=TUNING` are ddlrun's mode p without MPI, and `torch-ddl` its
backend of torch.distributed; `gloo` is that of PyTorch. `two-level` is Horovod's hierarchical allreduce, by calls of
MPI.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.group.dimensions import Grid
from ddlrun.ddl.schedules.partition import block_bounds
from ddlrun.ddl.transports.tcp.world import tcp_world
from tests.bench.mpi_control import force, prefer

WORLD = MPI.COMM_WORLD
Array = np.ndarray[Any, Any]
# Recursive doubling, ring, segmented ring, Rabenseifner; basic linear and reduce + broadcast are left out.
FORCED = (3, 4, 5, 6)
SEGMENT = 2**20  # the default of tuned for the segmented ring
# An algorithm that takes twice as long as the best at this size in bytes, or above, is not tried at larger sizes.
DECISIVE = 2**20


class Algorithm:
    """An allreduce of float32."""

    note = ""
    # The relative error that is allowed: none, except where data travel in 16 bits.
    tolerance = 0.0

    def clock(self) -> float:
        """Return the CPU seconds of this rank."""
        return time.process_time()

    def prepare(self, count: int, repeat: int) -> None:
        """Prepare for arrays of `count` elements that will be reduced `repeat` times in a row."""

    def turn(self) -> AbstractContextManager[None]:
        """Return the context of the runs, which is not timed."""
        return nullcontext()

    def run(self, x: Array) -> Array:
        """Return the sum, in x or elsewhere."""
        raise NotImplementedError

    def is_correct(self, result: Array, exact: Array) -> bool:
        """Return True if a sum is correct."""
        return bool((np.abs(result - exact) <= self.tolerance * exact).all())


class Ours(Algorithm):
    """The allreduce of ddlrun in a mode, or by a DDL string, with a tuning."""

    def __init__(self, text: str) -> None:
        mode, _, tuning = text.partition("=")
        self._learner = start_learner(f"-mode {mode}", WORLD, tuning, os.environ)
        if "wire=" in tuning:
            self.tolerance = WORLD.size * 2.0**-8

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        self.run(np.zeros(count, np.float32))  # mode p explores in the first run at a size

    def run(self, x: Array) -> Array:
        self._learner.all_reduce(x, "sum", "", True)
        return x


class OverTcp(Ours):
    """Mode p of ddlrun over its own TCP connections."""

    def __init__(self, tuning: str, *, one_host: bool) -> None:
        address, port = meet(one_host=one_host)
        place = {"RANK": WORLD.rank, "WORLD_SIZE": WORLD.size, "MASTER_ADDR": address, "MASTER_PORT": port}
        environ = {**os.environ, **{name: str(value) for name, value in place.items()}}
        self._learner = start_learner("-mode p", tcp_world(environ), tuning, environ)

    def clock(self) -> float:
        """Return the CPU seconds of this thread; those of gloo here wake up 100 times per second when idle."""
        return time.thread_time()


class Native(Algorithm):
    """MPI_Allreduce on a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def run(self, x: Array) -> Array:
        self._comm.Allreduce(MPI.IN_PLACE, x)
        return x


class OutOfPlace(Native):
    """MPI_Allreduce from one array to another: coll/han of Open MPI 4.1.4 crashes in place."""

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        self._sum = np.zeros(count, np.float32)

    def run(self, x: Array) -> Array:
        self._comm.Allreduce(x, self._sum)
        return self._sum


class BestForced(Algorithm):
    """The best of coll/tuned's algorithms at each size, by one to three runs of each."""

    def __init__(self) -> None:
        self._comms = {number: force(WORLD, number, SEGMENT if number == 5 else 0) for number in FORCED}
        self._left = list(FORCED)
        self._best = FORCED[0]

    def prepare(self, count: int, repeat: int) -> None:
        x = np.zeros(count, np.float32)
        times = {number: self._seconds(number, x, repeat) for number in self._left}
        least = min(times.values())
        for number in [number for number in times if times[number] < 1.2 * least] * 2:
            times[number] = min(times[number], self._seconds(number, x, repeat))
        self._best = min(times, key=times.__getitem__)
        self.note = f"algorithm {self._best} of " + ", ".join(f"{number}: {times[number]:.3g} s" for number in times)
        if x.nbytes >= DECISIVE:
            self._left = [number for number in times if times[number] < 2 * times[self._best]]

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

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        bounds = block_bounds(count, self._local.size)
        self._counts = [high - low for low, high in zip(bounds, bounds[1:], strict=False)]
        self._piece = np.zeros(self._counts[self._local.rank], np.float32)

    def run(self, x: Array) -> Array:
        self._local.Reduce_scatter(x, self._piece, self._counts)
        self._across.Allreduce(MPI.IN_PLACE, self._piece)
        self._local.Allgatherv(self._piece, [x, self._counts])
        return x


class Horovod(Algorithm):
    """Horovod's allreduce, on torch tensors; initialised for its turns alone, as its thread sends all the time."""

    def __init__(self) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - optional
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
        self._dist, self._tensor, self._group = dist, torch.from_numpy, None
        if not dist.is_initialized():
            address, port = meet(one_host=one_host)
            url = f"tcp://{address}:{port}"
            dist.init_process_group("gloo", init_method=url, rank=WORLD.rank, world_size=WORLD.size)

    def run(self, x: Array) -> Array:
        self._dist.all_reduce(self._tensor(x), group=self._group)
        return x


class DdlGroup(Gloo):
    """torch.distributed's all_reduce over a group of the backend ddl."""

    def __init__(self, *, one_host: bool) -> None:
        super().__init__(one_host=one_host)
        import ddlrun.ddl.torch  # noqa: F401, PLC0415 - it registers the backend

        os.environ["MASTER_ADDR"], _ = meet(one_host=one_host)
        earlier = set(threading.enumerate())
        self._group = self._dist.new_group(backend="ddl")
        # Without gloo's idle threads, as for `OverTcp`.
        threads = [threading.main_thread(), *set(threading.enumerate()) - earlier]
        self._clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]

    def clock(self) -> float:
        """Return the CPU seconds of this thread and of that of the group."""
        return sum(map(time.clock_gettime, self._clocks))


def meet(*, one_host: bool) -> tuple[str, int]:
    """Return an address of rank 0 and a free port there."""
    address = WORLD.bcast("127.0.0.1" if one_host else socket.gethostbyname(socket.gethostname()))
    return address, WORLD.bcast(free_port(address) if WORLD.rank == 0 else 0)


def free_port(address: str) -> int:
    with socket.socket() as server:
        server.bind((address, 0))
        port: int = server.getsockname()[1]
        return port


def make_algorithm(text: str) -> Algorithm:
    """Make an algorithm by its name, or by a DDL mode with `=TUNING`. Raises ImportError if its package is missing."""
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
        "torch-ddl": lambda: DdlGroup(one_host=learner.host.hosts == 1),
    }
    if text.partition("=")[0] == "tcp":
        return OverTcp(text.partition("=")[2], one_host=learner.host.hosts == 1)
    return makers[text]() if text in makers else Ours(text)
