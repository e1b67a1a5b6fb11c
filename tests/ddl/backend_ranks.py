"""A rank of test_torch_backend.py: the collectives of a backend, and training with it; prints the results.

RANK=... backend_ranks.py BACKEND
"""

import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ddlrun.ddl.torch  # noqa: F401 - it registers the backend


def full(count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, dtype=dtype)


def reductions(rank: int, size: int) -> Any:
    large = full(300_000, rank)
    dist.all_reduce(large, async_op=True).wait()
    yield "large", large[::100_000]
    bits = full(3, 1 << rank, torch.int64)
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    yield "or", bits
    half = full(3, rank, torch.bfloat16)
    dist.all_reduce(half, op=dist.ReduceOp.MAX)
    yield "max", half
    at_root = full(3, rank)
    dist.reduce(at_root, 1)
    yield "reduce", at_root if rank == 1 else None
    block = torch.zeros(2)
    dist.reduce_scatter(block, [full(2, other + rank) for other in range(size)])
    yield "reduce_scatter", block
    dist.reduce_scatter_single(block, torch.arange(2.0 * size))
    yield "reduce_scatter_single", block


def copies(rank: int, size: int) -> Any:
    turned = torch.full((2, 3), float(rank)).T
    dist.broadcast(turned, 1)
    yield "broadcast", turned
    rows = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(rows, full(2, rank))
    yield "all_gather", torch.cat(rows)
    whole = torch.zeros(2 * size)
    dist.all_gather_single(whole, full(2, rank))
    yield "all_gather_single", whole
    dist.gather(full(2, rank), rows if rank == 0 else None, 0)
    yield "gather", torch.cat(rows)
    block = torch.zeros(2)
    dist.scatter(block, [full(2, other) for other in range(size)] if rank == 1 else None, 1)
    yield "scatter", block
    crossed = torch.zeros(size)
    dist.all_to_all_single(crossed, torch.arange(float(size)) + 10 * rank)
    yield "all_to_all", crossed
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    yield "objects", objects


def pairs(rank: int, size: int) -> Any:
    received = torch.zeros(200_000)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    send = dist.P2POp(dist.isend, full(200_000, rank), (rank + 1) % size)
    for work in dist.batch_isend_irecv([receive, send]):
        work.wait()
    yield "pairs", received[::100_000]
    ends = dist.new_group([0, size - 1])
    if rank in {0, size - 1}:
        some = full(2, rank + 1)
        dist.all_reduce(some, group=ends)
        yield "some", some
    dist.barrier()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def train(model: nn.Module, rank: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        loss = model(torch.randn(5, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses


def training(rank: int, size: int) -> Any:
    yield "ddp", train(DistributedDataParallel(network()), rank)
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    yield "fsdp", train(model, rank)


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=250))
    rank, size = dist.get_rank(), dist.get_world_size()
    for part in (reductions, copies, pairs, training):
        for name, result in part(rank, size):
            print(name, result.tolist() if isinstance(result, torch.Tensor) else result, flush=True)
    dist.destroy_process_group()
    print("end")


if __name__ == "__main__":
    main()
