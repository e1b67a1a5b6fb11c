"""A rank of test_wire_compression.py: float32 sent in 16 bits, for every mode, operation, odd size and shape.

    mpirun -n 12 python -m mpi4py wire_ranks.py

Rank 0 prints the errors and the number of results that were checked.
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
from ddlrun.ddl.group.reduce_ops import OPERATIONS
from ddlrun.ddl.selection.wire_compression import Converter
from ddlrun.errors import InputError
from ddlrun.topology import parse_topology
from tests.ddl.allreduce_ranks import SHAPES, Tally, learners, report

MODES = "rcpb"
COUNT, COUNTS = 1009, [0, 1, 7, 997]
LARGE = 10**6 + 3
# Half of the last place, relative. The steps of float16 are at least 2**-24, so below that the error is absolute.
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST = {"bfloat16": 0.0, "float16": 2.0**-25}
WIRES = ["bfloat16:XYZ", "float16:XYZ", "bfloat16:X", "bfloat16:YZ", "float16:Y", "bfloat16:Z", "bfloat16:XZ"]


def values(rank: int, count: int, op: str) -> Any:
    """Return a rank's array, which is the same in every run."""
    random = np.random.default_rng([rank, count])
    array = random.uniform(0.5, 1.5, count) if op == "prod" else random.normal(size=count)
    return array.astype(np.float32)


def expected(shape: tuple[int, ...], wire: str, op: str, count: int) -> tuple[Any, Any]:
    """Return the result in float64, and the tolerance of each element.

    A value is rounded when it is sent, at most p - 1 times in a dimension of p learners, and once by its owner; each
    time by at most EPSILON of a partial sum, which is no larger than the sum of all absolute values. float32 adds its
    own roundings. The errors of factors multiply.
    """
    dtype, _, axes = wire.partition(":")
    size = math.prod(shape)
    arrays = np.array([values(rank, count, op) for rank in range(size)], np.float64)
    used = [p for axis, p in zip("XYZ", shape, strict=True) if axis in axes and p > 1]
    hops = 0
    if used:
        hops = size if op == "prod" else sum(p - 1 for p in used) + 1
    bound = (1 + EPSILON[dtype]) ** hops * (1 + 2.0**-24) ** (2 * size) - 1
    if op == "prod":
        exact = np.prod(arrays, axis=0)
        return exact, bound * exact + SMALLEST[dtype]
    scale = size if op == "avg" else 1
    return np.sum(arrays, axis=0) / scale, bound * np.sum(np.abs(arrays), axis=0) / scale + size * SMALLEST[dtype]


class WireChecks(Tally):
    """A tally of the ranks of a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__()
        self.comm = comm

    def check(self, case: str, right: object) -> None:
        self.count += 1
        if not right:
            self.wrong.append(f"rank {self.comm.rank} of {self.comm.size}: {case}")

    def check_same(self, case: str, result: Any) -> None:
        """Check that all ranks have the same bits."""
        rows = np.empty((self.comm.size, *result.shape), np.uint32)
        self.comm.Allgather(np.ascontiguousarray(result).view(np.uint32), rows)
        self.check(f"{case}: the same bits on all ranks", (rows == rows[0]).all())


def settled(values: Any, dtype: str) -> Any:
    """Return float32 rounded to values that 16 bits hold."""
    rounded = values.copy()
    Converter(dtype).settle(rounded)
    return rounded


def is_rounded(shape: tuple[int, ...], wire: str) -> bool:
    return any(p > 1 and axis in wire.partition(":")[2] for axis, p in zip("XYZ", shape, strict=True))


def reduce_all(checks: WireChecks, shape: tuple[int, ...], mode: str, wires: list[str]) -> None:
    """Reduce every case."""
    cases = [*itertools.product(wires, OPERATIONS, [COUNT]), *itertools.product(wires[:2], ["avg"], COUNTS)]
    for wire, op, count in cases:
        case = f"{mode}:{shape} {os.environ['DDLRUN_RANK_ORDER']} {op} of {count} by {wire}"
        dtype = wire.partition(":")[0]
        result = ddl.all_reduce(values(checks.comm.rank, count, op), op, wire=wire)
        checks.check_same(case, result)
        if op in ("max", "min"):
            # Rounding keeps the order, so the result is the largest value, rounded once.
            exact = OPERATIONS[op][0].reduce([values(rank, count, op) for rank in range(checks.comm.size)])
            checks.check(case, np.array_equal(result, settled(exact, dtype) if is_rounded(shape, wire) else exact))
            continue
        exact, tolerance = expected(shape, wire, op, count)
        checks.check(f"{case}: {result[:3]}, not {exact[:3]}", (np.abs(result - exact) <= tolerance).all())
        if is_rounded(shape, wire):
            checks.check(f"{case}: rounded", np.array_equal(settled(result, dtype), result))


def int8(checks: WireChecks, shape: tuple[int, ...], mode: str) -> None:
    """Reduce the same values again and again: the mean of the results approaches the exact one, by feedback."""
    rank, size = checks.comm.rank, checks.comm.size
    for wire, op, count in [
        ("int8:XYZ", "sum", 5003),
        ("int8:Y", "avg", 700),
        ("int8:XZ", "avg", 1),
        ("int8", "sum", 0),
    ]:
        case = f"{mode}:{shape} {op} of {count} by {wire}"
        exact = sum(values(other, count, op).astype(np.float64) for other in range(size)) / (size if op == "avg" else 1)
        x, total, errors = np.empty(count, np.float32), np.zeros(count), list[float]()
        for times in range(1, 17):
            x[:] = values(rank, count, op)
            total += ddl.all_reduce(x, op, in_place=True, wire=wire)
            checks.check_same(case, x)
            errors.append(float(np.abs(total / times - exact).max(initial=0)))
        rounded = is_rounded(shape, wire) and count > 1
        checks.check(f"{case}: {errors}", 2.0**-16 < errors[0] < size / 4 if rounded else errors[0] < 2.0**-4)
        checks.check(f"{case}: {errors}", errors[-1] < max(errors[0] / 4, 2.0**-16))
    x = values(rank, 300, "max")
    checks.check("max is sent as float32", (ddl.all_reduce(x, "max", wire="int8:XYZ") >= x).all())
    x[:2] = np.nan, 1
    ddl.all_reduce(x, in_place=True, wire="int8:XYZ")
    checks.check(f"a group with a NaN: {x[:3]}", np.isnan(x[:256] if is_rounded(shape, "int8:XYZ") else x[:1]).all())
    x[:] = 1
    ddl.all_reduce(x, in_place=True, wire="int8:XYZ")
    checks.check(f"the next reduction: {x[:3]}", (np.abs(x - size) < size / 4).all())


def odd_values(checks: WireChecks, shape: tuple[int, ...]) -> None:
    """Reduce NaN and infinity: each NaN stays one, whatever its bits, and infinity stays."""
    mine = np.ones(40, np.float32)
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC00000, 0x7FA00000], np.uint32)
    mine[:6] = bits.view(np.float32) if checks.comm.rank == checks.comm.size - 1 else 1
    mine[6:9] = np.inf, -np.inf, -np.inf if checks.comm.rank else np.inf
    mine[9:12] = 3e38, 0, -0.0
    with np.errstate(all="ignore"):
        for dtype, op in itertools.product(EPSILON, OPERATIONS):
            result, case = ddl.all_reduce(mine, op, wire=f"{dtype}:XYZ"), f"{shape} {op} by {dtype} of odd values"
            checks.check_same(case, result)
            checks.check(f"{case}: {result[:6]}", np.isnan(result[:6]).all())
            checks.check(f"{case}: {result[6]}", result[6] == np.inf)
            if op in ("sum", "avg") and checks.comm.size > 1:
                checks.check(f"{case}: {result[7:9]}", result[7] == -np.inf and np.isnan(result[8]))
            checks.check(f"{case}: {result[10:12]}", (result[10:12] == 0).all())


def ranges(checks: WireChecks, shape: tuple[int, ...]) -> None:
    """Check the range of float16, 65504: for a sum, and for the sums of an average in each dimension."""
    many = np.full(11, 20000, np.float32)
    checks.check(f"{shape} average in range", (ddl.all_reduce(many, "avg", wire="float16:XYZ") == many).all())
    total = ddl.all_reduce(many, wire="float16:XYZ")
    limit = np.inf if checks.comm.size > 3 else 20000 * checks.comm.size
    checks.check(f"{shape} sum of float16 {total[0]}", np.allclose(total, limit, rtol=2.0**-11))
    checks.check(f"{shape} sum of bfloat16", np.isfinite(ddl.all_reduce(many, wire="bfloat16:XYZ")).all())


def other_calls(checks: WireChecks, shape: tuple[int, ...]) -> None:
    """Reduce several arrays, at the same time, over some of the dimensions, and of other types."""
    rank, size = checks.comm.rank, checks.comm.size
    whole = (1 << 20) + 1
    many = [np.full(3, whole, np.int64), np.full((5, 2), 1 + 2.0**-40), np.full(7, 2.0**-8 + 1, np.float32)]
    many += [np.full(1000, rank + 1 / 3, np.float32)]
    results = ddl.all_reduce_n(many, "max", wire="bfloat16:XYZ")
    checks.check("int64 is sent as it is", (results[0] == whole).all())
    checks.check("float64 is sent as it is", (results[1] == 1 + 2.0**-40).all())
    checks.check("float32 is rounded", is_rounded(shape, "bfloat16:XYZ") == (results[2] != many[2]).any())
    handles = [
        ddl.start([x], "avg", wire=wire) for x, wire in zip(many[1:], ["", "float16:Y", "bfloat16"], strict=True)
    ]
    for handle, x in reversed(list(zip(handles, many[1:], strict=True))):
        handle.wait()
        checks.check_same("start", x.astype(np.float32))
    checks.check("on one host nothing is rounded", np.allclose(many[-1], (size - 1) / 2 + 1 / 3, rtol=2.0**-22))
    exact = np.full(9, 1 + 2.0**-20, np.float32)
    checks.check("other dimensions", (ddl.all_reduce(exact, "max", axes="X", wire="bfloat16:YZ") == exact).all())
    checks.check("reduce_scatter", (ddl.reduce_scatter(exact.copy(), "max") == exact[0]).all())


def large(checks: WireChecks, shape: tuple[int, ...]) -> None:
    """Reduce 4 MB of integers that bfloat16 holds, and a small array, which is sent as float32."""
    mine = np.random.default_rng(checks.comm.rank).integers(-9, 9, LARGE).astype(np.float32)
    exact = np.empty_like(mine)
    checks.comm.Allreduce(mine, exact)
    result = ddl.all_reduce(mine)
    checks.check(f"{shape}: {LARGE} float32", (result == exact).all())
    checks.check_same("large", result)
    third = np.full(100, 1 / 3, np.float32)
    checks.check("small arrays are sent as they are", (ddl.all_reduce(third, "max") == third).all())


def refusals(checks: WireChecks) -> Iterator[tuple[str, str, str]]:
    """Yield a wrong wire, a part of the expected error, and the error."""
    calls = {
        "float8": "wire 'float8': float32 travels as float16, bfloat16, int8 or float32; write for example",
        "bfloat16:W": "no dimension 'W'; there are X, Y, Z",
        "bfloat16:": "wire 'bfloat16:': float32 travels",
        f"bfloat16:{'XYZ'[checks.comm.rank % 2]}": "all reduce the same, in one order",
    }
    for wire, expected_part in calls.items():
        try:
            ddl.all_reduce(np.ones(3, np.float32), wire=wire)
            yield wire, expected_part, ""
        except InputError as error:
            yield wire, expected_part, str(error)


def run(checks: WireChecks, text: str) -> None:
    shape = parse_topology(text).dims
    for number, (order, mode) in enumerate(itertools.product(("host", "ddl"), MODES)):
        os.environ["DDLRUN_RANK_ORDER"] = order
        wires = WIRES if (order, mode) == ("host", "r") else WIRES[number % 3 :: 3]
        reports = " -dump_iter 50" if mode == "c" else ""  # by a reducer of its own
        with ddl.init(f"-mode {mode}:{text}{reports}", comm=checks.comm, tuning="chunk=1K,flat=0,bucket=2K"):
            reduce_all(checks, shape, mode, wires)
            if order == "host":
                int8(checks, shape, mode)
                odd_values(checks, shape)
                other_calls(checks, shape)
                if max(shape) <= 3:
                    ranges(checks, shape)
    for mode, explore in [("r", 0), ("p", 12)] if checks.comm.size < 4 else [("r", 0)]:
        with ddl.init(f"-mode {mode}:{text}", comm=checks.comm, tuning=f"wire=bfloat16:XYZ,flat=64K,explore={explore}"):
            large(checks, shape)
    with ddl.init(f"-mode r:{text} -dbg_level 1", comm=checks.comm, tuning="flat=0"):
        if checks.comm.size > 1:
            for wire, expected_part, message in refusals(checks):
                checks.check(f"{wire}: {message!r}, not {expected_part!r}", expected_part in message)


def main() -> None:
    world: Any = MPI.COMM_WORLD
    tallies = list[WireChecks]()
    for shape, comm in learners(world, sys.argv[1:] or SHAPES):
        tallies.append(WireChecks(comm))
        run(tallies[-1], shape)
    report(world, tallies)


if __name__ == "__main__":
    main()
