"""A rank of test_mpi.py: every mode, dtype, operation and odd size over several shapes in both orders of ranks.

    mpirun -n 12 python -m mpi4py allreduce_ranks.py [SHAPE...]

Rank 0 prints what is wrong, and how many results were looked at.
"""

import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from mpi4py import MPI

from ddlrun import ddl
from ddlrun.ddl.dimensions import coords_of
from ddlrun.ddl.flat import FlatArray
from ddlrun.ddl.reduce_ops import HALF, store, widen
from ddlrun.ddl.session import current_learner
from ddlrun.topology import parse_topology

SHAPES = "1x1x1 2x1x1 1x3x1 2x2x1 1x2x3 5x1x1 2x2x2 3x2x2".split()
MODES = "rcmpb"
DTYPES = "float16 bfloat16 float32 float64 int32 int16".split()
OPS = "sum avg max min prod".split()
LARGE = 10**6 + 3
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23, "float64": 2.0**-52}
WHOLE: dict[str, Callable[..., Any]] = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def values(rank: int, count: int, dtype: str, op: str) -> Any:
    """Return a rank's array: the same in every run."""
    random = np.random.default_rng([rank, count])
    if "int" in dtype or op == "prod":
        whole = random.integers(1, 3, count)
        return narrowed(whole.astype(np.float32), dtype) if dtype in HALF else whole.astype(dtype)
    return narrowed(random.normal(size=count).astype(np.float32), dtype)


def narrowed(whole: Any, dtype: str) -> Any:
    if dtype not in HALF:
        return whole.astype(dtype)
    target = np.empty(len(whole), np.float16 if dtype == "float16" else np.uint16)
    store(whole, target, dtype)
    return target


def cases() -> Iterator[tuple[str, str, int]]:
    """Yield dtype, op, count."""
    for dtype, op in itertools.product(DTYPES, OPS):
        if not (op == "avg" and "int" in dtype):
            yield dtype, op, 1009
    yield from itertools.product(["float32"], ["sum", "avg"], [0, 1, 7, 997])


def expected(size: int, dtype: str, op: str, count: int) -> tuple[Any, float]:
    """Return the float64 result and how far off a sum of that type may be."""
    arrays = [widen(values(rank, count, dtype, op), dtype).astype(np.float64) for rank in range(size)]
    exact = WHOLE[op](arrays, axis=0)
    roundings = EPSILON.get(dtype, 0) * (size + 3) * (op != "max") * (op != "min")
    return exact, roundings * float(np.max(np.sum(np.abs(arrays), axis=0), initial=1))


class Tally:
    """How much was looked at, and what was wrong."""

    def __init__(self) -> None:
        self.count, self.wrong = 0, list[str]()


class Checks(Tally):
    """The same, and a sum over all bits, which must be the same on all ranks."""

    bits = 0

    def see(self, what: str, found: Any, exact: Any, tolerance: float, dtype: str = "") -> None:
        self.count += 1
        self.bits = zlib.crc32(np.ascontiguousarray(found).tobytes(), self.bits)
        off = np.max(np.abs(widen(found, dtype).astype(np.float64) - exact), initial=0)
        if not off <= tolerance:
            self.wrong.append(f"rank {ddl.rank()}: {what}: {off} off, {tolerance} allowed")


def reduce_all(comm: MPI.Intracomm, mode: str, shape: str, checks: Checks) -> None:
    """Reduce every case."""
    for dtype, op, count in cases():
        mine = values(comm.rank, count, dtype, op)
        exact, tolerance = expected(comm.size, dtype, op, count)
        what = f"{mode}:{shape} {os.environ['DDLRUN_RANK_ORDER']} {op} of {count} {dtype}"
        if dtype == "bfloat16":
            checks.see(what, _bfloat(mine, op), exact, tolerance, dtype)
        else:
            checks.see(what, ddl.all_reduce(mine, op), exact, tolerance, dtype)


def _bfloat(mine: Any, op: str) -> Any:
    """Reduce bfloat16 without a package that has it: what arrays.flatten would make of it."""
    result = mine.copy()
    current_learner().reducer.reduce([FlatArray(result, "bfloat16", result.shape)], op).wait()
    return result


def other_calls(comm: MPI.Intracomm, checks: Checks) -> None:
    """Try what is not an allreduce of one array."""
    me, size = comm.rank, comm.size
    total = size * (size - 1) / 2
    many = [np.full(shape, me, np.float32) for shape in [(3, 5), (), (0,), (401,), (20, 30)]]
    many += [np.full((7, 2), me, np.float64).T, np.full(9, me, np.float16)]
    for one in ddl.all_reduce_n(many, "avg"):
        checks.see(f"all_reduce_n {one.dtype}", one, (size - 1) / 2, 1e-3)
    handles = [ddl.start([one], "sum") for one in many]
    for handle, one in reversed(list(zip(handles, many, strict=True))):
        while not handle.test():
            pass
        handle.wait()
        checks.see("start", one, total, 1e-2)
    whole = np.arange(101, dtype=np.int64) * (me + 1)
    block = ddl.reduce_scatter(whole)
    exact = np.arange(101) * (size * (size + 1) // 2)
    low, high = ddl.piece(101)
    checks.wrong += [] if (block == exact[low:high]).all() else [f"rank {me}: reduce_scatter {block}"]
    checks.see("allgather_pieces", ddl.allgather_pieces(whole), exact, 0)
    rows = ddl.allgather(np.array([[me, -me]]))
    checks.see("allgather", rows, np.array([[[r, -r]] for r in range(size)]), 0)
    for root in {0, size - 1}:
        checks.see("bcast", ddl.bcast(np.full((2, 3), me), root), root, 0)
    checks.see("a number", np.float64(ddl.all_reduce(float(me), "max")), size - 1, 0)
    grid = ddl.grid()
    for axes in ("X", "YZ"):
        near = [r for r in range(size) if differ(r) <= set(axes)]
        found = ddl.all_reduce(me, axes=axes)
        checks.wrong += [] if found == sum(near) else [f"rank {me} {grid.topology}: {axes}: {found}, not {sum(near)}"]
        if size > 1:
            there = grid.communicator(axes).allgather(me)
            checks.wrong += [] if sorted(there) == near else [f"rank {me}: communicator {axes} has {there}"]
    ddl.barrier()


def differ(rank: int) -> set[str]:
    """Return the axes in which a rank's place is another than this one's."""
    grid = ddl.grid()
    theirs = coords_of(grid.topology, grid.order, rank)
    return {axis for axis, a, b in zip(grid.axes, grid.coords, theirs, strict=True) if a != b}


def large(comm: MPI.Intracomm, mode: str, checks: Checks) -> None:
    """Reduce 4 MB of integers in place: float32 and MPI_Allreduce agree to the bit."""
    mine = np.random.default_rng(comm.rank).integers(-999, 999, LARGE).astype(np.float32)
    exact = np.empty_like(mine)
    comm.Allreduce(mine, exact)
    ddl.all_reduce(mine, in_place=True)
    checks.see(f"{mode}: {LARGE} float32", mine, exact, 0)


def run(comm: MPI.Intracomm, shape: str) -> Checks:
    checks = Checks()
    for order, mode in itertools.product(("host", "ddl"), MODES):
        os.environ["DDLRUN_RANK_ORDER"] = order
        for tuning in ["chunk=1K,flat=0,bucket=2K"] + ["chunk=64K,flat=64K"] * (mode == "p"):
            with ddl.init(f"-mode {mode}:{shape} -dbg_level 1", comm=comm, tuning=tuning):
                reduce_all(comm, mode, shape, checks)
                other_calls(comm, checks)
        if shape == SHAPES[-1]:
            with ddl.init(f"-mode {mode}:{shape}", comm=comm):
                large(comm, mode, checks)
    if len(set(comm.allgather(checks.bits))) > 1:
        checks.wrong.append(f"{shape}: results differ between ranks")
    return checks


def learners(world: MPI.Intracomm, shapes: Iterable[str]) -> Iterator[tuple[str, MPI.Intracomm]]:
    """Yield each shape with a communicator of as many ranks, on those ranks."""
    for shape in shapes:
        size = parse_topology(shape).size
        comm = cast("MPI.Intracomm", world.Split(int(world.rank < size), world.rank))
        if world.rank < size:
            yield shape, comm
        comm.Free()


def report(world: MPI.Intracomm, checks: Sequence[Tally]) -> NoReturn:
    """Print what was wrong on any rank, and exit."""
    wrong = [line for lines in world.allgather([line for one in checks for line in one.wrong]) for line in lines]
    if world.rank == 0:
        print(*wrong[:20], sep="\n")
        print(f"{sum(one.count for one in checks)} results, {len(wrong)} wrong")
    sys.exit(1 if wrong else None)


def main() -> None:
    world = MPI.COMM_WORLD
    checks = []
    for shape, comm in learners(world, sys.argv[1:] or SHAPES):
        checks.append(run(comm, shape))
    report(world, checks)


if __name__ == "__main__":
    main()
