"""A rank of test_process_groups.py: torch.distributed's groups of the grid, and tensors on devices, real or simulated.

    mpirun -n 8 python -m mpi4py groups_ranks.py groups|simulated|gpus|nccl

Rank 0 prints the errors and the number of results that were checked.
"""

import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI
from torch import distributed

from ddlrun import ddl
from ddlrun.ddl import torch as ddl_torch
from ddlrun.ddl.group.handle import Handle
from ddlrun.ddl.session import current_learner
from ddlrun.ddl.transports.nccl import pipeline
from ddlrun.errors import InputError
from ddlrun.topology import parse_topology
from tests.ddl.allreduce_ranks import LARGE, Checks, differ, expected, learners, report, values

SHAPES = "1x1x1 1x3x1 3x1x2 2x2x2".split()
OPS = "sum avg max min prod".split()
COUNTS, CHUNK = [0, 1, 7, 24, 509], 120  # elements of a row, of a chunk


def cases(shape: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield dtype, op, count, longest."""
    yield from itertools.product(["float32"], ["avg"], COUNTS, [CHUNK])
    yield from itertools.product(["float32"], ["sum"], [COUNTS[-1]], [CHUNK, LARGE])
    yield from itertools.product(["float16", "bfloat16", "float64"], ["sum", "avg"], [101], [CHUNK])
    yield from itertools.product(["int32", "float64"], ["max", "min", "prod"], [101], [CHUNK])
    if shape in {"3x1x2", "2x2x2"}:
        yield from itertools.product(["float32"], ["avg"], [LARGE], [LARGE // 5, LARGE])


def tensor(rank: int, count: int, dtype: str, op: str) -> torch.Tensor:
    array = values(rank, count, dtype, op)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.tensor(array)


def bits(result: torch.Tensor) -> Any:
    result = result.cpu()
    return result.view(torch.int16).numpy().view(np.uint16) if result.dtype is torch.bfloat16 else result.numpy()


def check_groups(checks: Checks) -> None:
    """Check that each group has the learners that differ in its axes only, and that the mesh is the grid."""
    grid, me = ddl.grid(), ddl.rank()
    for axes in ("X", "Y", "Z", "ZY", "XYZ", ""):
        near = [rank for rank in range(ddl.size()) if differ(rank) <= set(axes or "XYZ")]
        group = ddl_torch.process_group(axes)
        total = torch.tensor([float(me)])
        distributed.all_reduce(total, group=group)
        checks.check(f"group {axes!r}", np.array(distributed.get_process_group_ranks(group)), near, 0)
        checks.check(f"a sum over {axes!r}", total.numpy(), sum(near), 0)
    mesh = ddl_torch.device_mesh()
    if mesh.mesh_dim_names != tuple(grid.axes):
        checks.wrong.append(f"dimensions {mesh.mesh_dim_names}")
    checks.check("mesh: here", mesh.mesh[grid.coords].numpy(), me, 0)
    for axis, at in zip(grid.axes, grid.coords, strict=True):
        checks.check(f"mesh: at {axis}", np.int64(mesh.get_local_rank(axis)), at, 0)
        checks.check(f"mesh: peers {axis}", mesh[axis].mesh.numpy(), grid.peers(axis), 0)


def check_wavefront(checks: Checks, shape: str, device: str) -> None:
    dimensions = current_learner().devices.groups.along("")
    for dtype, op, count, longest in cases(shape):
        row = tensor(ddl.rank(), count, dtype, op).to(device)
        reduction = pipeline.start(row, op, dimensions, longest)
        reduction.wait()
        exact, tolerance = expected(ddl.size(), dtype, op, count)
        checks.check(f"{shape}: {op} of {count} {dtype} by {longest}", bits(row), exact, tolerance, dtype)
        if not reduction.test():
            checks.wrong.append("test() is False after wait()")
    handle = Handle(current_learner().group.engine, current_learner().guard)
    several = [torch.full(size, float(ddl.rank())) for size in [(3, 5), (), (0,), (7,), (300, 99)]]
    several += [torch.full((9, 4), ddl.rank(), dtype=torch.float64).T, torch.full((6, 2), float(ddl.rank())).T]
    several = [row.to(device) for row in several]
    current_learner().devices.reduce_over_groups(several, "avg", "", handle)
    while not handle.test():
        pass
    for row in several:
        checks.check(f"{shape}: several", row.cpu().numpy(), (ddl.size() - 1) / 2, 1e-5)
    for axes in ("Y", "XZ"):
        near = [rank for rank in range(ddl.size()) if differ(rank) <= set(axes)]
        row = torch.arange(50.0, device=device) + ddl.rank()
        pipeline.start(row, "avg", current_learner().devices.groups.along(axes), 9).wait()
        exact = np.arange(50.0) + np.mean(near)
        if not np.allclose(row.cpu().numpy(), exact):
            checks.wrong.append(f"{shape}: avg over {axes}: {row}")


def groups(comm: MPI.Intracomm, shape: str, device: str) -> Checks:
    checks, alike = Checks(), Checks()
    for order in ("host", "ddl"):
        os.environ["DDLRUN_RANK_ORDER"] = order
        with ddl.init(f"-mode b:{shape}", comm=comm):
            check_groups(checks)
            if order == "ddl":
                check_wavefront(alike, shape, device)
            if device == "cuda" and current_learner().devices.groups.why_no_nccl:
                checks.wrong.append(current_learner().devices.groups.why_no_nccl)
    if distributed.is_initialized():
        checks.wrong.append("the default group outlives the learner")
    if len(set(comm.allgather(alike.bits))) > 1:
        checks.wrong.append(f"{shape}: results differ between ranks")
    checks.wrong += alike.wrong
    checks.count += alike.count
    return checks


class SimulatedTensor(torch.Tensor):
    """A tensor on a simulated device: like a GPU's it has no memory that numpy could read."""

    content: torch.Tensor

    @classmethod
    def wrap(cls, content: torch.Tensor) -> torch.Tensor:
        wrapped = cls._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, content.shape, strides=content.stride(), dtype=content.dtype, device=torch.device("meta")
        )
        wrapped.content = content
        return cast("torch.Tensor", wrapped)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = [arg.content if isinstance(arg, SimulatedTensor) else arg for arg in args]
        result = func(*plain, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            return args[0]
        wraps = isinstance(args[0], SimulatedTensor) and isinstance(result, torch.Tensor)
        return cls.wrap(result) if wraps else result


def devices(comm: MPI.Intracomm, make: Callable[[torch.Tensor], torch.Tensor]) -> Checks:
    """Make every call with tensors on a device, and some on the CPU among them."""
    checks, me, size = Checks(), comm.rank, comm.size
    half, total = (size - 1) / 2, size * (size - 1) / 2
    for options in ("-mode r -dev_sync 1", "-mode c -dev_sync 2", "-mode m -dbg_level 1", "-mode b", "-mode n"):
        with ddl.init(options, comm=comm):
            for dtype, op in itertools.product(["float32", "bfloat16", "float64", "float16"], OPS):
                mine = tensor(me, 1009, dtype, op)
                result = ddl.all_reduce(make(mine), op)
                checks.check(f"{options} {op} of {dtype}", host(result), *expected(size, dtype, op, 1009), dtype)
            whole = make(torch.full((3, 40000), float(me)).T)
            ddl.all_reduce(whole, "avg", in_place=True)
            checks.check(f"{options} in place", host(whole), half, 1e-5)
            mixed = [make(torch.full((n,), float(me))) if n % 2 else torch.full((n,), float(me)) for n in range(9)]
            mixed += [make(torch.tensor(float(me))), make(torch.full((60000,), float(me)))]
            for result in ddl.all_reduce_n(mixed, "sum"):
                checks.check(f"{options} several", host(result), total, 1e-5)
            handles = [ddl.start([x], "sum") for x in mixed]
            while not handles[0].test():
                pass
            for handle, x in reversed(list(zip(handles, mixed, strict=True))):
                handle.wait()
                handle.wait()
                checks.check(f"{options} handles", host(x), total, 1e-5)
            checks.check(f"{options} bcast", host(ddl.bcast(make(torch.full((5,), me)), size - 1)), size - 1, 0)
            check_error(lambda: ddl.all_reduce(make(torch.ones(3, dtype=torch.bool))), "bool cannot be reduced", checks)
            check_error(
                lambda: ddl.all_reduce(make(torch.ones(3, dtype=torch.int32)), "avg"), "average of int32", checks
            )
    return checks


def host(result: torch.Tensor) -> Any:
    return bits(torch.empty(result.shape, dtype=result.dtype).copy_(result))


def check_error(call: Callable[[], Any], expected: str, checks: Checks) -> None:
    try:
        call()
        message = "no error"
    except InputError as error:
        message = str(error)
    if expected not in message or not message.startswith(f"rank {ddl.rank()} of {ddl.size()}: all_reduce: "):
        checks.wrong.append(f"{message!r} is not {expected!r}")


def defaults(comm: MPI.Intracomm) -> Checks:
    """Check that a default group of the script is used if it is the grid's, else that every rank gets an error."""
    checks, me = Checks(), f"rank {comm.rank} of {comm.size}: torch.distributed"
    remedy = "begin it with rank=ddl.rank(), world_size=ddl.size(), or leave it to ddlrun.ddl.torch."
    with socket.create_server(("", 0)) as taken:
        os.environ["MASTER_PORT"] = str(taken.getsockname()[1])
        with ddl.init(f"-mode n:{comm.size}", comm=comm):
            check_refusal(f"{me}: no store at ", checks)
    del os.environ["MASTER_PORT"]
    for reverse in (True, False):
        start_default_group("gloo", comm, comm.size - 1 - comm.rank if reverse else comm.rank)
        with ddl.init(f"-mode n:{comm.size}", comm=comm):
            if reverse:
                check_refusal(f"{me} is rank {comm.size - 1} of {comm.size} on rank 0 of {comm.size}; {remedy}", checks)
            else:
                total = torch.ones(2)
                distributed.all_reduce(total, group=ddl_torch.process_group("X"))
                checks.check("a sum over the script's", total.numpy(), comm.size, 0)
        if not distributed.is_initialized():
            checks.wrong.append("the script's default group is ended")
        distributed.destroy_process_group()
    if comm.rank == 1:
        distributed.init_process_group(store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    with ddl.init(f"-mode n:{comm.size}", comm=comm):
        check_refusal(f"{me} is not begun on rank 0 of {comm.size}; {remedy}", checks)
    if comm.rank == 1:
        distributed.destroy_process_group()
    return checks


def start_default_group(backend: str, comm: MPI.Intracomm, rank: int) -> None:
    """Start a default group as a script may."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if comm.rank == 0 else None  # type: ignore[attr-defined]
    port = comm.bcast(server.port if server else 0)
    store = server or distributed.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=comm.size)
    comm.Barrier()


def check_refusal(start: str, checks: Checks) -> None:
    try:
        ddl_torch.init_process_group()
        message = "no error"
    except InputError as error:
        message = str(error)
    if not message.startswith(start):
        checks.wrong.append(f"{message!r} does not begin with {start!r}")


def gpu(mine: torch.Tensor) -> torch.Tensor:
    return mine.cuda()


def use_gpu(rank: int) -> None:
    """Choose the GPU of a rank. NCCL lets ranks share one if it takes them for ranks of different hosts."""
    count = torch.cuda.device_count()
    os.environ |= {"NCCL_HOSTID": str(rank // count), "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(rank % count)


def main() -> None:
    torch.set_num_threads(1)
    world: Any = MPI.COMM_WORLD
    subject, checks = sys.argv[1], list[Checks]()
    if subject in {"gpus", "nccl"}:
        use_gpu(world.rank)
    if subject == "gpus":
        checks.append(devices(world, gpu))
    if subject == "simulated":
        checks += [devices(world, SimulatedTensor.wrap), defaults(world)]
    shapes = [shape for shape in SHAPES if parse_topology(shape).size <= world.size]
    for shape, comm in learners(world, shapes if subject in {"groups", "nccl"} else ()):
        checks.append(groups(comm, shape, "cuda" if subject == "nccl" else "cpu"))
    report(world, checks)


if __name__ == "__main__":
    main()
