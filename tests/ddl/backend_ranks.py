"""A rank of test_torch_backend.py: collectives, training and failures of the backend; prints errors and differences.

RANK=... backend_ranks.py PORT

The results are compared with those of gloo, whose ranks meet at PORT.
"""

import os
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ddlrun.ddl.torch  # noqa: F401 - it registers the backend

# The limit of groups whose rank 2 is late. Busy cores delay no other rank by as much.
LIMIT = timedelta(seconds=10)
untyped: Any = dist  # its stubs lack what is used here
# The names of PyTorch 2.13, or the older ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


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
    true = torch.tensor([True, rank == 0, False])
    dist.all_reduce(true, op=dist.ReduceOp.MAX)
    yield "bool", true
    turning = full(3, rank + 1, torch.complex64)
    dist.all_reduce(turning)
    yield "complex", turning
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([1.0, 2.0]), (size + 2,))
    dist.all_reduce(sparse)
    yield "sparse", sparse.to_dense()
    several = [full(2, rank), full(3, rank)]
    dist.all_reduce_coalesced(several)
    yield "coalesced", torch.cat(several)
    block = torch.zeros(2)
    dist.reduce_scatter(block, [full(2, other + rank) for other in range(size)])
    yield "reduce_scatter", block
    reduce_scatter_single(block, torch.arange(2.0 * size))
    yield "reduce_scatter_single", block


def copies(rank: int, size: int) -> Any:
    turned = torch.full((2, 3), float(rank)).T
    dist.broadcast(turned, 1)
    yield "broadcast", turned
    rows = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(rows, full(2, rank))
    yield "all_gather", torch.cat(rows)
    whole = torch.zeros(2 * size)
    all_gather_single(whole, full(2, rank))
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
    if rank == 0:
        sources = [dist.recv(received, tag=5) for _ in range(1, size)]
        yield "any source", sorted(sources)
        yield "from the last source", received[:1] - sources[-1]
        works: list[Any] = [dist.irecv(received, tag=6), dist.irecv(received, 1, tag=7)]
        yield "sources", [(work.wait(), work._source_rank())[1] for work in works]  # noqa: SLF001 - as torch calls it
    else:
        dist.send(full(200_000, rank), 0, tag=5)
        for tag in (6, 7) if rank == 1 else ():
            dist.send(full(200_000, rank), 0, tag=tag)
    ends = dist.new_group([0, size - 1])
    if rank in {0, size - 1}:
        some = full(2, rank + 1)
        dist.all_reduce(some, group=ends)
        yield "some", some
    dist.barrier()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def train(model: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Train with SGD or another optimizer; return the losses of this rank."""
    optimizer, losses = optimizer or torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        loss = model(torch.randn(5, 8)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses


def training(rank: int, size: int) -> Any:
    yield "ddp", train(DistributedDataParallel(network()), rank)
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    yield "fsdp", train(model, rank, torch.optim.Adam(model.parameters(), 0.1))
    yield "zero", zero(rank)
    yield "resized", train(FullyShardedDataParallel(network(), device_id=torch.device("cpu")), rank)
    compiled: Any = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    yield "compiled", train(compiled, rank)
    halves: Any = DistributedDataParallel(network())
    halves._register_builtin_comm_hook(untyped.BuiltinCommHookType.FP16_COMPRESS)  # noqa: SLF001 - it has no public name
    yield "float16", train(halves, rank)
    parallel = DistributedDataParallel(network())
    parallel.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    yield "powerSGD_hook", train(parallel, rank)
    weights = torch.cat([parameter.detach().flatten() for parameter in parallel.parameters()])
    everywhere: list[Any] = [None] * size
    dist.all_gather_object(everywhere, weights.numpy().tobytes())
    yield "the same bits", len(set(everywhere))


def zero(rank: int) -> list[Any]:
    """Return the losses with each parameter's Adam state on one rank, the places here, and all states on rank 0."""
    model = DistributedDataParallel(network())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    losses, here = train(model, rank, optimizer), len(optimizer.optim.state)
    optimizer.consolidate_state_dict(to=0)
    states = optimizer.state_dict()["state"] if rank == 0 else {}
    return [losses, here, [round(state["exp_avg"].sum().item(), 4) for state in states.values()]]


def results(backend: str) -> list[str]:
    dist.init_process_group(backend, timeout=timedelta(seconds=250))
    rank, size = dist.get_rank(), dist.get_world_size()
    return [
        f"{name} {result.tolist() if isinstance(result, torch.Tensor) else result}"
        for part in (reductions, copies, pairs, training)
        for name, result in part(rank, size)
    ]


def error_of(group: Any) -> str:
    return error_from(lambda: dist.all_reduce(torch.ones(5), group=group))


def error_from(call: Any) -> str:
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def late(rank: int) -> Any:
    """Yield the errors of ranks 0 and 1 at timeouts, all of which run at once, in groups whose rank 2 calls nothing."""
    group, trained, pair = (dist.new_group(backend="ddl", timeout=LIMIT) for _ in range(3))
    ends = dist.new_group([0, 2], backend="ddl")
    if rank == 0:
        dist.distributed_c10d._set_pg_timeout(LIMIT, ends)  # noqa: SLF001 - it has no public name
    model = DistributedDataParallel(network(), process_group=trained)
    dist.barrier()
    if rank < 2:
        silent: Any = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        receive: Any = dist.irecv(torch.ones(5), 2, pair, tag=4)
        some: Any = dist.all_reduce(torch.ones(5), group=ends, async_op=True) if rank == 0 else None
        trains = error_from(lambda: train(model, rank)).split("\n")[0]
        yield "silent", error_from(silent.wait)
        yield "then", error_of(group)
        yield "ddp", trains
        yield "recv", error_from(receive.wait)
    if rank == 0:
        yield "some", error_from(some.wait)
        world: Any = dist.group.WORLD
        yield "monitored", error_from(lambda: world.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True))
    dist.barrier()


def wrong(rank: int, size: int) -> Any:
    """Yield the errors of wrong arguments, after which the group works."""
    yield "length", error_from(lambda: dist.all_gather([torch.ones(2)], torch.ones(2)))
    yield "size", error_from(lambda: dist.all_gather([torch.ones(3)] * size, torch.ones(2)))
    yield "rows", error_from(lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)))
    no = untyped.ReduceOp
    yield "bits", error_from(lambda: dist.all_reduce(torch.ones(2), no.BAND))
    yield "average", error_from(lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), no.AVG))
    doubled = untyped._make_nccl_premul_sum(2.0)  # noqa: SLF001 - torch has no other name for it
    yield "factor", error_from(lambda: dist.all_reduce(torch.ones(2), doubled))
    yield "tag", error_from(lambda: dist.isend(torch.ones(2), (rank + 1) % size, tag=1 << 40))
    yield "itself", error_from(lambda: dist.isend(torch.ones(2), rank))
    total = torch.full((2,), rank)
    dist.all_reduce(total)
    yield "total", total.tolist()


def failures(rank: int) -> Any:
    """Yield errors in groups whose rank 2 does not take part, or awaits another message."""
    group = dist.new_group(backend="ddl")
    if rank == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        group.abort()
        try:
            work.wait()
        except RuntimeError as error:
            yield "aborted", error
        yield "after", error_of(group)
    if rank == 1:
        yield "aborted", error_of(group)
    dist.barrier()
    pair = dist.new_group([1, 2], backend="ddl")
    if rank == 1:
        dist.send(torch.ones(4), 2, group=pair)
        yield "peer", error_from(lambda: dist.recv(torch.ones(4), 2, group=pair))
    if rank == 2:
        yield "shorter", error_from(lambda: dist.recv(torch.ones(5), 1, group=pair))
    if rank < 2:
        yield "absent", error_of(dist.new_group(backend="ddl", timeout=LIMIT))
    dist.barrier()  # rank 0 ends the store, which the other one may need


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ours = results("cpu:ddl")
    rank = dist.get_rank()
    for part in (wrong(rank, dist.get_world_size()), late(rank), failures(rank)):
        for name, error in part:
            print(f"{name}: {error}")
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = sys.argv[1]
    theirs = results("gloo")
    dist.destroy_process_group()
    print(
        f"{len(ours)} results, of which differ: {[pair for pair in zip(ours, theirs, strict=True) if len({*pair}) > 1]}"
    )


if __name__ == "__main__":
    main()
