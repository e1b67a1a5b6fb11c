"""A rank of test_mpi.py and test_tcp.py: every mode, dtype, operation, odd size and several shapes in both orders.

    mpirun -n 12 python -m mpi4py allreduce_ranks.py [--quick] [--bits] [SHAPE...]

--quick takes each mode in one of the two rank orders, and in the other one for every other shape. --bits takes the
modes whose sums do not depend on MPI or on measured times, and prints a checksum of all results. Rank 0 prints the
errors and the number of results that were checked.
"""

import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ddlrun import ddl
from ddlrun.ddl.group.dimensions import coords_of
from ddlrun.ddl.group.flat import FlatArray
from ddlrun.ddl.group.reduce_ops import HALF, store, widen
from ddlrun.ddl.launch_context import find_world
from ddlrun.ddl.session import current_learner
from ddlrun.topology import parse_topology

if TYPE_CHECKING:
    from ddlrun.ddl.transports.communicators import Communicator
else:
    Communicator = Any

SHAPES = "1x1x1 2x1x1 1x3x1 2x2x1 1x2x3 5x1x1 2x2x2 3x2x2".split()
MODES = "rcmpb"
FIXED_MODES = "rc"
DTYPES = "float16 bfloat16 float32 float64 int32 int16".split()
OPS = "sum avg max min prod".split()
LARGE = 10**6 + 3
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23, "float64": 2.0**-52}
WHOLE: dict[str, Callable[..., Any]] = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def values(rank: int, count: int, dtype: str, op: str) -> Any:
    """Return a rank's array, which is the same in every run."""
    random = np.random.default_rng([rank, count])
    if "int" in dtype or op == "prod":
        whole = random.integers(1, 3, count)
        return narrow(whole.astype(np.float32), dtype) if dtype in HALF else whole.astype(dtype)
    return narrow(random.normal(size=count).astype(np.float32), dtype)


def narrow(whole: Any, dtype: str) -> Any:
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
    """Return the result in float64, and the tolerance of a sum of that dtype."""
    arrays = [widen(values(rank, count, dtype, op), dtype).astype(np.float64) for rank in range(size)]
    exact = WHOLE[op](arrays, axis=0)
    roundings = 0 if op in ("max", "min") else EPSILON.get(dtype, 0) * (size + 3)
    return exact, roundings * float(np.max(np.sum(np.abs(arrays), axis=0), initial=1))


class Tally:
    """The number of results that were checked, and the errors."""

    def __init__(self) -> None:
        self.count, self.wrong = 0, list[str]()


class Checks(Tally):
    """A tally with a checksum over all results, which must be the same on all ranks."""

    bits = 0

    def check(self, case: str, result: Any, exact: Any, tolerance: float, dtype: str = "") -> None:
        self.count += 1
        self.bits = zlib.crc32(np.ascontiguousarray(result).tobytes(), self.bits)
        error = np.max(np.abs(widen(result, dtype).astype(np.float64) - exact), initial=0)
        if not error <= tolerance:
            self.wrong.append(f"rank {ddl.rank()}: {case}: {error} off, {tolerance} allowed")


def reduce_all(comm: Communicator, mode: str, shape: str, checks: Checks) -> None:
    """Reduce every case."""
    for dtype, op, count in cases():
        mine = values(comm.rank, count, dtype, op)
        exact, tolerance = expected(comm.size, dtype, op, count)
        case = f"{mode}:{shape} {os.environ['DDLRUN_RANK_ORDER']} {op} of {count} {dtype}"
        if dtype == "bfloat16":
            checks.check(case, _bfloat(mine, op), exact, tolerance, dtype)
        else:
            checks.check(case, ddl.all_reduce(mine, op), exact, tolerance, dtype)


def _bfloat(mine: Any, op: str) -> Any:
    """Reduce bfloat16 without a package that has it: `mine` is what flatten would return."""
    result = mine.copy()
    current_learner().reducer.reduce([FlatArray(result, "bfloat16", result.shape)], op).wait()
    return result


def other_calls(comm: Communicator, checks: Checks) -> None:
    """Call everything that is not an allreduce of a single array."""
    me, size = comm.rank, comm.size
    total = size * (size - 1) / 2
    many = [np.full(shape, me, np.float32) for shape in [(3, 5), (), (0,), (401,), (20, 30)]]
    many += [np.full((7, 2), me, np.float64).T, np.full(9, me, np.float16)]
    for average in ddl.all_reduce_n(many, "avg"):
        checks.check(f"all_reduce_n {average.dtype}", average, (size - 1) / 2, 1e-3)
    handles = [ddl.start([array], "sum") for array in many]
    for handle, array in reversed(list(zip(handles, many, strict=True))):
        while not handle.test():
            pass
        handle.wait()
        checks.check("start", array, total, 1e-2)
    whole = np.arange(101, dtype=np.int64) * (me + 1)
    block = ddl.reduce_scatter(whole)
    exact = np.arange(101) * (size * (size + 1) // 2)
    low, high = ddl.piece(101)
    if not (block == exact[low:high]).all():
        checks.wrong.append(f"rank {me}: reduce_scatter {block}")
    checks.check("allgather_pieces", ddl.allgather_pieces(whole), exact, 0)
    rows = ddl.allgather(np.array([[me, -me]]))
    checks.check("allgather", rows, np.array([[[r, -r]] for r in range(size)]), 0)
    for root in {0, size - 1}:
        checks.check("bcast", ddl.bcast(np.full((2, 3), me), root), root, 0)
    checks.check("a number", np.float64(ddl.all_reduce(float(me), "max")), size - 1, 0)
    grid = ddl.grid()
    for axes in ("X", "YZ"):
        near = [r for r in range(size) if differ(r) <= set(axes)]
        result = ddl.all_reduce(me, axes=axes)
        if result != sum(near):
            checks.wrong.append(f"rank {me} {grid.topology}: {axes}: {result}, not {sum(near)}")
        if size > 1:
            members = grid.communicator(axes).allgather(me)
            if sorted(members) != near:
                checks.wrong.append(f"rank {me}: communicator {axes} has {members}")
    ddl.barrier()


def differ(rank: int) -> set[str]:
    """Return the axes in which a rank's position differs from this one's."""
    grid = ddl.grid()
    theirs = coords_of(grid.topology, grid.order, rank)
    return {axis for axis, a, b in zip(grid.axes, grid.coords, theirs, strict=True) if a != b}


def large(comm: Communicator, mode: str, checks: Checks) -> None:
    """Reduce 4 MB of integers in place: their sums are exact in float32."""
    arrays = [np.random.default_rng(r).integers(-999, 999, LARGE).astype(np.float32) for r in range(comm.size)]
    mine, exact = arrays[comm.rank], np.sum(arrays, axis=0)
    ddl.all_reduce(mine, in_place=True)
    checks.check(f"{mode}: {LARGE} float32", mine, exact, 0)


def run(comm: Communicator, shape: str, *, quick: bool, last: bool) -> Checks:
    checks = Checks()
    orders = ("host", "ddl")
    modes = (
        FIXED_MODES if "--bits" in sys.argv else [mode for mode in MODES if mode != "m" or comm.collectives is not None]
    )
    in_turn = zip(itertools.cycle(orders[::-1] if shape in SHAPES[::2] else orders), modes)
    for order, mode in in_turn if quick else itertools.product(orders, modes):
        os.environ["DDLRUN_RANK_ORDER"] = order
        tunings = ["chunk=1K,flat=0,bucket=2K", *(["chunk=64K,flat=64K"] if mode == "p" else [])]
        for tuning in tunings:
            with ddl.init(f"-mode {mode}:{shape} -dbg_level 1", comm=comm, tuning=tuning):
                reduce_all(comm, mode, shape, checks)
                other_calls(comm, checks)
        if last:
            with ddl.init(f"-mode {mode}:{shape}", comm=comm):
                large(comm, mode, checks)
    if len(set(comm.allgather(checks.bits))) > 1:
        checks.wrong.append(f"{shape}: results differ between ranks")
    return checks


def learners(world: Communicator, shapes: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield each shape with a communicator of its size, on the ranks in it."""
    for shape in shapes:
        size = parse_topology(shape).size
        comm: Any = world.Split(int(world.rank < size), world.rank)
        if world.rank < size:
            yield shape, comm
        comm.Free()


def report(world: Communicator, checks: Sequence[Tally]) -> NoReturn:
    """Print the errors of all ranks, and exit."""
    mine = [line for tally in checks for line in tally.wrong]
    wrong = [line for lines in world.allgather(mine) for line in lines]
    if world.rank == 0:
        print(*wrong[:20], sep="\n")
        if "--bits" in sys.argv:
            print("bits", *(checksum.bits for checksum in checks if isinstance(checksum, Checks)))
        print(f"{sum(tally.count for tally in checks)} results, {len(wrong)} wrong")
    sys.exit(1 if wrong else None)


def main() -> None:
    world = find_world(os.environ)
    checks = []
    shapes = [word for word in sys.argv[1:] if not word.startswith("--")] or SHAPES
    for shape, comm in learners(world, shapes):
        checks.append(run(comm, shape, quick="--quick" in sys.argv, last=shape == shapes[-1]))
    report(world, checks)


if __name__ == "__main__":
    main()
