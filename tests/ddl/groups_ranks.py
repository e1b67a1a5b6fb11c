"""A rank of test_process_groups.py: torch.distributed's groups of the grid, and tensors of devices, real or pretended.

    mpirun -n 8 python -m mpi4py groups_ranks.py WHAT

Rank 0 prints what is wrong, and how many results were looked at.
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
from ddlrun.ddl import nccl_pipeline
from ddlrun.ddl import torch as ddl_torch
from ddlrun.ddl.gpu_reduction import DeviceHandle
from ddlrun.ddl.handle import Handle
from ddlrun.ddl.session import current_learner
from ddlrun.errors import InputError
from ddlrun.topology import parse_topology
from tests.ddl.allreduce_ranks import LARGE, Checks, differ, expected, learners, report, values

SHAPES = "1x1x1 1x3x1 3x1x2 2x2x2".split()
OPS = "sum avg max min prod".split()
FEW, MANY = [0, 1, 7, 24, 509], 120  # elements of a row, of a chunk


def cases(shape: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield dtype, op, count, longest."""
    yield from itertools.product(["float32"], ["avg"], FEW, [MANY])
    yield from itertools.product(["float32"], ["sum"], [FEW[-1]], [MANY, LARGE])
    yield from itertools.product(["float16", "bfloat16", "float64"], ["sum", "avg"], [101], [MANY])
    yield from itertools.product(["int32", "float64"], ["max", "min", "prod"], [101], [MANY])
    if shape in {"3x1x2", "2x2x2"}:
        yield from itertools.product(["float32"], ["avg"], [LARGE], [LARGE // 5, LARGE])


def tensor(rank: int, count: int, dtype: str, op: str) -> torch.Tensor:
    array = values(rank, count, dtype, op)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.tensor(array)


def bits(found: torch.Tensor) -> Any:
    found = found.cpu()
    return found.view(torch.int16).numpy().view(np.uint16) if found.dtype is torch.bfloat16 else found.numpy()


def check_groups(checks: Checks) -> None:
    """Each group has who differs in its axes alone, and the mesh is the grid."""
    grid, me = ddl.grid(), ddl.rank()
    for axes in ("X", "Y", "Z", "ZY", "XYZ", ""):
        near = [rank for rank in range(ddl.size()) if differ(rank) <= set(axes or "XYZ")]
        group = ddl_torch.process_group(axes)
        found = torch.tensor([float(me)])
        distributed.all_reduce(found, group=group)
        checks.see(f"group {axes!r}", np.array(distributed.get_process_group_ranks(group)), near, 0)
        checks.see(f"a sum over {axes!r}", found.numpy(), sum(near), 0)
    mesh = ddl_torch.device_mesh()
    checks.wrong += [] if mesh.mesh_dim_names == tuple(grid.axes) else [f"dimensions {mesh.mesh_dim_names}"]
    checks.see("mesh: here", mesh.mesh[grid.coords].numpy(), me, 0)
    for axis, at in zip(grid.axes, grid.coords, strict=True):
        checks.see(f"mesh: at {axis}", np.int64(mesh.get_local_rank(axis)), at, 0)
        checks.see(f"mesh: peers {axis}", mesh[axis].mesh.numpy(), grid.peers(axis), 0)


def check_wavefront(checks: Checks, shape: str) -> None:
    dimensions = current_learner().devices.groups.along("")
    for dtype, op, count, longest in cases(shape):
        row = tensor(ddl.rank(), count, dtype, op)
        flight = nccl_pipeline.start(row, op, dimensions, longest)
        flight.wait()
        exact, tolerance = expected(ddl.size(), dtype, op, count)
        checks.see(f"{shape}: {op} of {count} {dtype} by {longest}", bits(row), exact, tolerance, dtype)
        checks.wrong += [] if flight.test() else ["a result that is there is told not to be"]
    handle = DeviceHandle(Handle(None), lambda: None)
    several = [torch.full(size, float(ddl.rank())) for size in [(3, 5), (), (0,), (7,), (300, 99)]]
    several += [torch.full((9, 4), ddl.rank(), dtype=torch.float64).T, torch.full((6, 2), float(ddl.rank())).T]
    current_learner().devices.reduce_over_groups(several, "avg", "", handle)
    while not handle.test():
        pass
    for one in several:
        checks.see(f"{shape}: several", one.numpy(), (ddl.size() - 1) / 2, 1e-5)
    for axes in ("Y", "XZ"):
        near = [rank for rank in range(ddl.size()) if differ(rank) <= set(axes)]
        row = torch.arange(50.0) + ddl.rank()
        nccl_pipeline.start(row, "avg", current_learner().devices.groups.along(axes), 9).wait()
        exact = np.arange(50.0) + np.mean(near)
        if not np.allclose(row.numpy(), exact):
            checks.wrong.append(f"{shape}: avg over {axes}: {row}")


def groups(comm: MPI.Intracomm, shape: str) -> Checks:
    checks, alike = Checks(), Checks()
    for order in ("host", "ddl"):
        os.environ["DDLRUN_RANK_ORDER"] = order
        with ddl.init(f"-mode b:{shape}", comm=comm):
            check_groups(checks)
            if order == "ddl":
                check_wavefront(alike, shape)
    checks.wrong += ["the default group outlives the learner"] if distributed.is_initialized() else []
    if len(set(comm.allgather(alike.bits))) > 1:
        checks.wrong.append(f"{shape}: results differ between ranks")
    checks.wrong += alike.wrong
    checks.count += alike.count
    return checks


class Pretended(torch.Tensor):
    """A tensor of a device that is none: like a GPU's it has no memory that numpy could read."""

    kept: torch.Tensor

    @classmethod
    def made_of(cls, kept: torch.Tensor) -> torch.Tensor:
        made = cls._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, kept.shape, strides=kept.stride(), dtype=kept.dtype, device=torch.device("meta")
        )
        made.kept = kept
        return cast("torch.Tensor", made)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = [arg.kept if isinstance(arg, Pretended) else arg for arg in args]
        found = func(*plain, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            return args[0]
        return cls.made_of(found) if isinstance(args[0], Pretended) and isinstance(found, torch.Tensor) else found


def devices(comm: MPI.Intracomm, make: Callable[[torch.Tensor], torch.Tensor]) -> Checks:
    """Try every call on tensors of a device, and some of the CPU among them."""
    checks, me, size = Checks(), comm.rank, comm.size
    half, total = (size - 1) / 2, size * (size - 1) / 2
    for options in ("-mode r -dev_sync 1", "-mode c -dev_sync 2", "-mode m -dbg_level 1", "-mode b", "-mode n"):
        with ddl.init(options, comm=comm):
            for dtype, op in itertools.product(["float32", "bfloat16", "float64", "float16"], OPS):
                mine = tensor(me, 1009, dtype, op)
                found = ddl.all_reduce(make(mine), op)
                checks.see(f"{options} {op} of {dtype}", host(found), *expected(size, dtype, op, 1009), dtype)
            whole = make(torch.full((3, 40000), float(me)).T)
            ddl.all_reduce(whole, "avg", in_place=True)
            checks.see(f"{options} in place", host(whole), half, 1e-5)
            mixed = [make(torch.full((n,), float(me))) if n % 2 else torch.full((n,), float(me)) for n in range(9)]
            mixed += [make(torch.tensor(float(me))), make(torch.full((60000,), float(me)))]
            for one in ddl.all_reduce_n(mixed, "sum"):
                checks.see(f"{options} several", host(one), total, 1e-5)
            handles = [ddl.start([one], "sum") for one in mixed]
            while not handles[0].test():
                pass
            for handle, one in reversed(list(zip(handles, mixed, strict=True))):
                handle.wait()
                handle.wait()
                checks.see(f"{options} handles", host(one), total, 1e-5)
            checks.see(f"{options} bcast", host(ddl.bcast(make(torch.full((5,), me)), size - 1)), size - 1, 0)
            error(lambda: ddl.all_reduce(make(torch.ones(3, dtype=torch.bool))), "bool cannot be reduced", checks)
            error(lambda: ddl.all_reduce(make(torch.ones(3, dtype=torch.int32)), "avg"), "average of int32", checks)
    return checks


def host(found: torch.Tensor) -> Any:
    return bits(torch.empty(found.shape, dtype=found.dtype).copy_(found))


def error(call: Callable[[], Any], said: str, checks: Checks) -> None:
    try:
        call()
        text = "no error"
    except InputError as found:
        text = str(found)
    if said not in text or not text.startswith(f"rank {ddl.rank()} of {ddl.size()}: all_reduce: "):
        checks.wrong.append(f"{text!r} is not {said!r}")


def defaults(comm: MPI.Intracomm) -> Checks:
    """A default group that the script began is used if it is the grid's, else that is an error on every rank."""
    checks, me = Checks(), f"rank {comm.rank} of {comm.size}: torch.distributed"
    remedy = "begin it with rank=ddl.rank(), world_size=ddl.size(), or leave it to ddlrun.ddl.torch."
    with socket.create_server(("", 0)) as taken:
        os.environ["MASTER_PORT"] = str(taken.getsockname()[1])
        with ddl.init(f"-mode n:{comm.size}", comm=comm):
            refused(f"{me}: no store at ", checks)
    del os.environ["MASTER_PORT"]
    for reverse in (True, False):
        begin("gloo", comm, comm.size - 1 - comm.rank if reverse else comm.rank)
        with ddl.init(f"-mode n:{comm.size}", comm=comm):
            if reverse:
                refused(f"{me} is rank {comm.size - 1} of {comm.size} on rank 0 of {comm.size}; {remedy}", checks)
            else:
                found = torch.ones(2)
                distributed.all_reduce(found, group=ddl_torch.process_group("X"))
                checks.see("a sum over the script's", found.numpy(), comm.size, 0)
        checks.wrong += [] if distributed.is_initialized() else ["the script's default group is ended"]
        distributed.destroy_process_group()
    if comm.rank == 1:
        distributed.init_process_group(store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    with ddl.init(f"-mode n:{comm.size}", comm=comm):
        refused(f"{me} is not begun on rank 0 of {comm.size}; {remedy}", checks)
    if comm.rank == 1:
        distributed.destroy_process_group()
    return checks


def begin(backend: str, comm: MPI.Intracomm, rank: int) -> None:
    """Begin a default group as a script might."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if comm.rank == 0 else None  # type: ignore[attr-defined]
    port = comm.bcast(server.port if server else 0)
    store = server or distributed.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=comm.size)
    comm.Barrier()


def refused(said: str, checks: Checks) -> None:
    try:
        ddl_torch.init_process_group()
        text = "no error"
    except InputError as found:
        text = str(found)
    if not text.startswith(said):
        checks.wrong.append(f"{text!r} is not {said!r}")


def gpu(mine: torch.Tensor) -> torch.Tensor:
    return mine.cuda()


def main() -> None:
    torch.set_num_threads(1)
    world, what, checks = MPI.COMM_WORLD, sys.argv[1], list[Checks]()
    if what == "gpus":
        torch.cuda.set_device(world.rank % torch.cuda.device_count())
        checks.append(devices(world, gpu))
    if what == "pretended":
        checks += [devices(world, Pretended.made_of), defaults(world)]
    shapes = [shape for shape in SHAPES if parse_topology(shape).size <= world.size]
    for shape, comm in learners(world, shapes if what == "groups" else ()):
        checks.append(groups(comm, shape))
    report(world, checks)


if __name__ == "__main__":
    main()
