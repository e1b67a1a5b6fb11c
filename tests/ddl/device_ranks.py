"""A rank of test_torch_backend.py: tensors on the CPU and on another device in groups of `cpu:ddl,DEVICE:BACKEND`.

RANK=... device_ranks.py DEVICE BACKEND PORT...

It prints what each call did, once for the CPU first, and once for it last. The ranks meet at MASTER_PORT and PORT.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed as torch_distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # registers the backend "fake"

import ddlrun.ddl.torch  # noqa: F401 - registers the backend

dist: Any = torch_distributed  # its stubs lack what is called here
# The names of PyTorch 2.13, or the older ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def outcome(call: Callable[[], Any]) -> str:
    """Return "done", or the error of a call."""
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "done"


def collectives(device: torch.device, group: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls with tensors on a device. Some pass lists of lists, and some no tensor first."""
    size, rank = group.size(), group.rank()
    one, rows = torch.ones(2, device=device), list(torch.ones(2 * size, device=device).split(2))
    whole = torch.ones(2 * size, device=device)
    yield "all_reduce", lambda: dist.all_reduce(one, group=group)
    yield "broadcast", lambda: dist.broadcast(one, group=group, group_src=0)
    yield "reduce", lambda: dist.reduce(one, group=group, group_dst=0)
    yield "all_gather", lambda: dist.all_gather(rows, one, group=group)
    yield "all_gather_single", lambda: all_gather_single(whole, one, group=group)
    yield "reduce_scatter", lambda: dist.reduce_scatter(one, rows, group=group)
    yield "reduce_scatter_single", lambda: reduce_scatter_single(one, whole, group=group)
    yield "gather", lambda: dist.gather(one, rows if rank == 0 else None, group=group, group_dst=0)
    yield "scatter", lambda: dist.scatter(one, rows if rank == 0 else None, group=group, group_src=0)
    yield "all_to_all", lambda: dist.all_to_all(list(torch.zeros_like(whole).split(2)), rows, group=group)
    yield "all_to_all_single", lambda: dist.all_to_all_single(torch.zeros_like(whole), whole, group=group)
    if rank < 2 <= size:
        message: Any = dist.send if rank == 0 else dist.recv
        yield "message", lambda: message(one, group=group, **{"group_dst" if rank == 0 else "group_src": 1 - rank})
    options = dist.BarrierOptions()
    options.device = device
    yield "barrier", lambda: group.barrier(options).wait()


def report(device: torch.device, group: Any) -> None:
    """Print the errors of calls with tensors on a device, and results on the CPU."""
    errors = {outcome(call) for _, call in collectives(device, group)}
    total, objects = torch.ones(3), [None] * group.size()
    dist.all_reduce(total, group=group)
    dist.all_gather_object(objects, group.rank(), group=group)
    dist.barrier(group)
    print(sorted(errors), total.tolist(), objects)


def check_group(device: torch.device, backend: str) -> None:
    """Print what torch reads of a group, and the errors of mixed tensors."""
    world = dist.group.WORLD
    report(device, world)
    here = world._get_backend(torch.device("cpu")) is world  # noqa: SLF001
    there = type(world._get_backend(device)).__name__.lower()  # noqa: SLF001
    print(dist.get_backend(), here, backend in there, dist.distributed_c10d._device_capability())  # noqa: SLF001
    one, other = torch.ones(2), torch.ones(2, device=device)
    print(outcome(lambda: world.broadcast([one, other], dist.BroadcastOptions())))
    print(outcome(lambda: world.broadcast([other, one], dist.BroadcastOptions())))


def check_parts(device: torch.device) -> None:
    """Print the same of groups of some of the ranks, one of which is aborted, and of the groups of a mesh."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = sorted({0, size - 1})
    some = dist.new_group(ends)
    if rank in ends:
        report(device, some)
    dist.barrier()
    if rank in ends:
        some.abort()
        print(outcome(lambda: dist.all_reduce(torch.ones(1, device=device), group=some)))
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    report(device, mesh.get_group("inner"))


def check_refusal(device: torch.device) -> None:
    """Print the error of a group without a backend for the device, which remains usable."""
    report(device, dist.new_group(backend="ddl"))


def check_training(device: torch.device) -> None:
    """Print whether DistributedDataParallel averages gradients: on a GPU, and on the CPU otherwise."""
    place = device if device.type == "cuda" else torch.device("cpu")
    model = DistributedDataParallel(nn.Linear(2, 1, device=place))
    model(torch.full((1, 2), float(dist.get_rank()), device=place)).sum().backward()
    mean = (dist.get_world_size() - 1) / 2
    print(model.module.weight.grad.tolist() == [[mean, mean]])


def main(kind: str, backend: str, *ports: str) -> None:
    """Check both orders of the names, of which torch makes the group of the other device itself in the second one."""
    torch.set_num_threads(1)
    device = torch.device(kind)
    if kind == "cuda":
        rank, count = int(os.environ["RANK"]), torch.cuda.device_count()
        device = torch.device(kind, rank % count)
        torch.cuda.set_device(device)
        # NCCL lets ranks share a GPU if it takes them for ranks of different hosts.
        os.environ |= {"NCCL_HOSTID": str(rank // count), "NCCL_SOCKET_IFNAME": "lo"}
    for names, port in zip((f"cpu:ddl,{kind}:{backend}", f"{kind}:{backend},cpu:ddl"), ports, strict=True):
        os.environ["MASTER_PORT"] = port
        dist.init_process_group(names, device_id=device if kind == "cuda" else None)
        check_group(device, backend)
        check_parts(device)
        check_refusal(device)
        check_training(device)
        dist.destroy_process_group()


if __name__ == "__main__":
    assert fake_pg
    main(*sys.argv[1:])
