"""A rank of test_late_schedule.py: reductions of 4 hosts, one of which is late.

    mpirun -n 8 python -m mpi4py late_ranks.py

All ranks are on one machine, and count as hosts of 2. Rank 0 prints the errors and the number of results.
"""

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun import ddl
from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, LATE
from ddlrun.ddl.bootstrap import make_group
from ddlrun.ddl.group.dimensions import Grid
from ddlrun.ddl.group.engine import Engine
from ddlrun.ddl.group.flat import FlatArray
from ddlrun.ddl.group.host_reduction import HostReducer
from ddlrun.ddl.group.operation import Limits
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.launch_context import find_world, parse_options
from ddlrun.ddl.schedules.cache import Collective, ScheduleCache
from ddlrun.ddl.selection.algorithm_selection import GroupSizes, Selection
from ddlrun.ddl.selection.late_host_monitor import INTERVAL, make_monitors
from ddlrun.ddl.selection.unequal_links import HostGroups
from ddlrun.topology import RankOrder, Topology
from tests.ddl.allreduce_ranks import WHOLE, Checks, report

if TYPE_CHECKING:
    from ddlrun.ddl.transports.communicators import Communicator
else:
    Communicator = Any

SHAPE = Topology((2, 4, 1))
LATE_HOST = 2
COUNT = 2**18 + 5
DTYPES = ("float32", "float64", "float16", "int32")


def begin_without_the_late_host(world: Communicator, checks: Checks) -> None:
    """The late host starts only when all other ranks have done what can be done without it."""
    grid = Grid(SHAPE, RankOrder.HOST, world)
    schedules = ScheduleCache(grid.dimensions("p"), grid.rank)
    schedules.set_late_host(LATE_HOST)
    engine = Engine(world.make_transport(), world.rank)
    start = partial(
        engine.start,
        np.full(COUNT, float(world.rank)),
        find_reduce_op("float64", "sum"),
        partial(schedules.steps, Collective("all_reduce", algorithms=LATE)),
        Limits(COUNT // 8, 2),
    )
    operation = None
    if grid.coords[1] != LATE_HOST:
        operation = start()
        chunks = operation.left // 2
        while operation.left > chunks:
            engine.test(operation)
            time.sleep(0.001)
    world.Barrier()
    operation = operation or start()
    engine.wait(operation)
    checks.check("a host that is late", operation.array, world.size * (world.size - 1) / 2, 0)
    engine.free()
    grid.free()


def values(rank: int, number: int, dtype: str) -> Any:
    """Return a rank's array, with zeros of either sign among floats."""
    random = np.random.default_rng([rank, number])
    if dtype == "int32":
        return random.integers(-9, 9, COUNT).astype(dtype)
    array = random.normal(size=COUNT).astype(dtype)
    array[:100] = random.choice([0.0, -0.0], 100)
    return array


def reduce_with_a_late_host(world: Communicator, order: RankOrder, checks: Checks) -> None:
    """Reduce arrays with all operations, and in one of the orders until the hosts have been compared, and once more."""
    grid = Grid(SHAPE, order, world)
    hosts = HostGroups(tuple(grid_ranks(grid, host) for host in range(4)), (4,))
    tuning = BETWEEN_HOSTS._replace(explore=0)
    comm = grid.members(grid.axes)
    selection = Selection(parse_options("-mode p"), GroupSizes(tuning), learners=SHAPE.dims, comm=comm)
    group = make_group(grid, selection)
    group.monitors += make_monitors(group, world, hosts, grid.host_place(hosts))
    reducer = HostReducer(grid, group, "")
    reducer.schedules.set_late_host(LATE_HOST)
    late = grid.coords[1] == LATE_HOST
    for number, (dtype, op) in enumerate((dtype, op) for dtype in DTYPES for op in WHOLE if op != "prod"):
        if dtype == "int32" and op == "avg":
            continue
        arrays = [values(rank, number, dtype) for rank in range(world.size)]
        exact = WHOLE[op]([array.astype(np.float64) for array in arrays], axis=0)
        mine = [arrays[world.rank].copy() for _ in range(2)]
        if late:
            time.sleep(0.01)
        handles = [reducer.reduce([FlatArray(x, dtype, x.shape)], op, blocking=False) for x in mine]
        for handle, result in zip(reversed(handles), reversed(mine), strict=True):
            handle.wait()
            checks.check(f"{order.value} {op} of {dtype}", result, exact, 0.05 if dtype == "float16" else 1e-5)
        reducer.reduce([FlatArray(np.ones(99), "float64", (99,))], "sum").wait()
    for _ in range(INTERVAL if order is RankOrder.HOST else 0):
        ones = np.ones(COUNT, np.float32)
        time.sleep(0.01 if late else 0)
        reducer.reduce([FlatArray(ones, "float32", ones.shape)], "sum").wait()
        checks.check("ones", ones, world.size, 0)
    nan = np.full(COUNT, np.nan, np.float32).view(np.uint32) + np.uint32(world.rank)
    reducer.schedules.set_late_host(LATE_HOST)
    reducer.reduce([FlatArray(nan.view(np.float32), "float32", nan.shape)], "sum").wait()
    checks.check("NaN", nan & np.uint32(0x7F800000), 0x7F800000, 0)
    checks.check("the same NaN", nan, np.array(world.allgather(nan)[0]), 0)
    reducer.group.free()
    grid.free()


def grid_ranks(grid: Grid, host: int) -> tuple[int, ...]:
    """Return the ranks of a host."""
    return tuple(grid.topology.rank(host, x, grid.order) for x in range(grid.topology.ranks_per_host))


def main() -> None:
    world = find_world(os.environ)
    checks = Checks()
    with ddl.init("-mode r", comm=world):  # errors name the rank
        begin_without_the_late_host(world, checks)
        for order in RankOrder:
            reduce_with_a_late_host(world, order, checks)
    if len(set(world.allgather(checks.bits))) > 1:
        checks.wrong.append("results differ between ranks")
    report(world, [checks])


if __name__ == "__main__":
    main()
