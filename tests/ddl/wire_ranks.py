"""A rank of test_wire_compression.py: float32 that travels in 16 bits, for every mode, operation, odd size and shape.

    mpirun -n 12 python -m mpi4py wire_ranks.py

Rank 0 prints what is wrong, and how many results were looked at.
"""

import itertools
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun import ddl
from ddlrun.ddl.reduce_ops import OPERATIONS
from ddlrun.ddl.wire_compression import Converter
from ddlrun.errors import InputError
from ddlrun.topology import parse_topology
from tests.ddl.allreduce_ranks import SHAPES, Tally, learners, report

MODES = "rcpb"
COUNT, COUNTS = 1009, [0, 1, 7, 997]
LARGE = 10**6 + 3
# Half of the last place, relative; float16 has no smaller steps than 2**-24, so below that the error is absolute.
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST = {"bfloat16": 0.0, "float16": 2.0**-25}
WIRES = ["bfloat16:XYZ", "float16:XYZ", "bfloat16:X", "bfloat16:YZ", "float16:Y", "bfloat16:Z", "bfloat16:XZ"]


def values(rank: int, count: int, op: str) -> Any:
    """Return a rank's array: the same in every run."""
    random = np.random.default_rng([rank, count])
    found = random.uniform(0.5, 1.5, count) if op == "prod" else random.normal(size=count)
    return found.astype(np.float32)


def expected(shape: tuple[int, ...], wire: str, op: str, count: int) -> tuple[Any, Any]:
    """Return the float64 result and how far off each element may be.

    A value is rounded when it is sent in one of the dimensions, p - 1 times at most in one of p, and once at its owner;
    each time by at most EPSILON of a partial sum, which is no larger than the sum of all absolute values. float32 adds
    its own roundings. Factors multiply all of their errors.
    """
    dtype, _, axes = wire.partition(":")
    size = math.prod(shape)
    arrays = np.array([values(rank, count, op) for rank in range(size)], np.float64)
    used = [p for axis, p in zip("XYZ", shape, strict=True) if axis in axes and p > 1]
    hops = (size if op == "prod" else sum(p - 1 for p in used) + 1) * bool(used)
    bound = (1 + EPSILON[dtype]) ** hops * (1 + 2.0**-24) ** (2 * size) - 1
    if op == "prod":
        exact = np.prod(arrays, axis=0)
        return exact, bound * exact + SMALLEST[dtype]
    scale = size if op == "avg" else 1
    return np.sum(arrays, axis=0) / scale, bound * np.sum(np.abs(arrays), axis=0) / scale + size * SMALLEST[dtype]


class Checks(Tally):
    """Results of one communicator's ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__()
        self.comm = comm

    def see(self, what: str, right: object) -> None:
        self.count += 1
        if not right:
            self.wrong.append(f"rank {self.comm.rank} of {self.comm.size}: {what}")

    def same(self, what: str, found: Any) -> None:
        """See that all ranks have the same bits."""
        rows = np.empty((self.comm.size, *found.shape), np.uint32)
        self.comm.Allgather(np.ascontiguousarray(found).view(np.uint32), rows)
        self.see(f"{what}: the same bits on all ranks", (rows == rows[0]).all())


def settled(found: Any, dtype: str) -> Any:
    """Return float32 rounded to what 16 bits hold."""
    rounded = found.copy()
    Converter(dtype).settle(rounded)
    return rounded


def travels(shape: tuple[int, ...], wire: str) -> bool:
    return any(p > 1 and axis in wire.partition(":")[2] for axis, p in zip("XYZ", shape, strict=True))


def reduce_all(checks: Checks, shape: tuple[int, ...], mode: str, wires: list[str]) -> None:
    """Reduce every case."""
    cases = [*itertools.product(wires, OPERATIONS, [COUNT]), *itertools.product(wires[:2], ["avg"], COUNTS)]
    for wire, op, count in cases:
        what = f"{mode}:{shape} {os.environ['DDLRUN_RANK_ORDER']} {op} of {count} by {wire}"
        dtype = wire.partition(":")[0]
        found = ddl.all_reduce(values(checks.comm.rank, count, op), op, wire=wire)
        checks.same(what, found)
        if op in ("max", "min"):
            # Rounding keeps the order, so the largest is what it is and rounded once.
            exact = OPERATIONS[op][0].reduce([values(rank, count, op) for rank in range(checks.comm.size)])
            checks.see(what, np.array_equal(found, settled(exact, dtype) if travels(shape, wire) else exact))
            continue
        exact, tolerance = expected(shape, wire, op, count)
        checks.see(f"{what}: {found[:3]}, not {exact[:3]}", (np.abs(found - exact) <= tolerance).all())
        if travels(shape, wire):
            checks.see(f"{what}: rounded", np.array_equal(settled(found, dtype), found))


def odd_values(checks: Checks, shape: tuple[int, ...]) -> None:
    """Reduce what is no number: every NaN stays one, whatever its bits, and infinity too."""
    mine = np.ones(40, np.float32)
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC00000, 0x7FA00000], np.uint32)
    mine[:6] = bits.view(np.float32) if checks.comm.rank == checks.comm.size - 1 else 1
    mine[6:9] = np.inf, -np.inf, -np.inf if checks.comm.rank else np.inf
    mine[9:12] = 3e38, 0, -0.0
    with np.errstate(all="ignore"):
        for dtype, op in itertools.product(EPSILON, OPERATIONS):
            found, what = ddl.all_reduce(mine, op, wire=f"{dtype}:XYZ"), f"{shape} {op} by {dtype} of odd values"
            checks.same(what, found)
            checks.see(f"{what}: {found[:6]}", np.isnan(found[:6]).all())
            checks.see(f"{what}: {found[6]}", found[6] == np.inf)
            if op in ("sum", "avg") and checks.comm.size > 1:
                checks.see(f"{what}: {found[7:9]}", found[7] == -np.inf and np.isnan(found[8]))
            checks.see(f"{what}: {found[10:12]}", (found[10:12] == 0).all())


def ranges(checks: Checks, shape: tuple[int, ...]) -> None:
    """See where float16 ends: 65504, for a sum and for what a dimension of an average adds up."""
    many = np.full(11, 20000, np.float32)
    checks.see(f"{shape} average in range", (ddl.all_reduce(many, "avg", wire="float16:XYZ") == many).all())
    total = ddl.all_reduce(many, wire="float16:XYZ")
    limit = np.inf if checks.comm.size > 3 else 20000 * checks.comm.size
    checks.see(f"{shape} sum of float16 {total[0]}", np.allclose(total, limit, rtol=2.0**-11))
    checks.see(f"{shape} sum of bfloat16", np.isfinite(ddl.all_reduce(many, wire="bfloat16:XYZ")).all())


def other_calls(checks: Checks, shape: tuple[int, ...]) -> None:
    """Reduce several arrays, under way at once, over some of the dimensions, of other types."""
    rank, size = checks.comm.rank, checks.comm.size
    whole = (1 << 20) + 1
    many = [np.full(3, whole, np.int64), np.full((5, 2), 1 + 2.0**-40), np.full(7, 2.0**-8 + 1, np.float32)]
    many += [np.full(1000, rank + 1 / 3, np.float32)]
    found = ddl.all_reduce_n(many, "max", wire="bfloat16:XYZ")
    checks.see("int64 and float64 travel as they are", (found[0] == whole).all() and (found[1] == 1 + 2.0**-40).all())
    checks.see("float32 does not", travels(shape, "bfloat16:XYZ") == (found[2] != many[2]).any())
    handles = [
        ddl.start([x], "avg", wire=wire) for x, wire in zip(many[1:], ["", "float16:Y", "bfloat16"], strict=True)
    ]
    for handle, x in reversed(list(zip(handles, many[1:], strict=True))):
        handle.wait()
        checks.same("start", x.astype(np.float32))
    checks.see("on one host nothing is rounded", np.allclose(many[-1], (size - 1) / 2 + 1 / 3, rtol=2.0**-22))
    exact = np.full(9, 1 + 2.0**-20, np.float32)
    checks.see("other dimensions", (ddl.all_reduce(exact, "max", axes="X", wire="bfloat16:YZ") == exact).all())
    checks.see("reduce_scatter", (ddl.reduce_scatter(exact.copy(), "max") == exact[0]).all())


def large(checks: Checks, shape: tuple[int, ...]) -> None:
    """Reduce 4 MB of integers that bfloat16 holds, and small ones that go as they are."""
    mine = np.random.default_rng(checks.comm.rank).integers(-9, 9, LARGE).astype(np.float32)
    exact = np.empty_like(mine)
    checks.comm.Allreduce(mine, exact)
    found = ddl.all_reduce(mine)
    checks.see(f"{shape}: {LARGE} float32", (found == exact).all())
    checks.same("large", found)
    third = np.full(100, 1 / 3, np.float32)
    checks.see("small arrays travel as they are", (ddl.all_reduce(third, "max") == third).all())


def refused(checks: Checks) -> Iterator[tuple[str, str, object]]:
    """Yield what was wrong, what should be said of it, what was said."""
    calls = {
        "float8": "wire 'float8': float32 travels as float16, bfloat16 or float32; write for example bfloat16, or",
        "bfloat16:W": "no dimension 'W'; there are X, Y, Z",
        "bfloat16:": "wire 'bfloat16:': float32 travels",
        f"bfloat16:{'XYZ'[checks.comm.rank % 2]}": "all reduce the same, in one order",
    }
    for wire, said in calls.items():
        try:
            ddl.all_reduce(np.ones(3, np.float32), wire=wire)
            yield wire, said, ""
        except InputError as error:
            yield wire, said, str(error)


def run(checks: Checks, text: str) -> None:
    shape = parse_topology(text).dims
    for number, (order, mode) in enumerate(itertools.product(("host", "ddl"), MODES)):
        os.environ["DDLRUN_RANK_ORDER"] = order
        wires = WIRES if (order, mode) == ("host", "r") else WIRES[number % 3 :: 3]
        with ddl.init(f"-mode {mode}:{text}", comm=checks.comm, tuning="chunk=1K,flat=0,bucket=2K"):
            reduce_all(checks, shape, mode, wires)
            if order == "host":
                odd_values(checks, shape)
                other_calls(checks, shape)
                if max(shape) <= 3:
                    ranges(checks, shape)
    for mode, explore in [("r", 0), *[("p", 12)] * (checks.comm.size < 4)]:
        with ddl.init(f"-mode {mode}:{text}", comm=checks.comm, tuning=f"wire=bfloat16:XYZ,flat=64K,explore={explore}"):
            large(checks, shape)
    with ddl.init(f"-mode r:{text} -dbg_level 1", comm=checks.comm, tuning="flat=0"):
        if checks.comm.size > 1:
            for wire, said, found in refused(checks):
                checks.see(f"{wire}: {found!r}, not {said!r}", said in str(found))


def main() -> None:
    world, found = MPI.COMM_WORLD, list[Checks]()
    for shape, comm in learners(world, sys.argv[1:] or SHAPES):
        found.append(Checks(comm))
        run(found[-1], shape)
    report(world, found)


if __name__ == "__main__":
    main()
