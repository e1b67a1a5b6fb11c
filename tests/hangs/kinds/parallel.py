"""Hangs in what trains in parallel with PyTorch: DDP, FSDP2, ZeRO, checkpoints, stores."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.hangs.kinds.job import Job


def uneven_batches(job: Job) -> None:
    """DDP: a rank has a batch less"""
    model = DistributedDataParallel(nn.Linear(job.size, 4))
    job.begin()
    for _ in range(2 if job.is_victim else 3):
        model(torch.ones(2, job.size)).sum().backward()  # waiting
    dist.barrier()  # guilty


def evaluation_on_one(job: Job) -> None:
    """DDP: rank 0 evaluates alone, with a collective of the metrics"""
    model = DistributedDataParallel(nn.Linear(job.size, 4))
    job.begin()
    model(torch.ones(2, job.size)).sum().backward()
    if job.is_victim:
        dist.reduce(torch.ones(1), dst=job.rank)  # guilty
    model(torch.ones(2, job.size)).sum().backward()  # waiting
    dist.barrier()


def sharded_state(job: Job) -> None:
    """FSDP2: a rank alone gathers the parameters"""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model)
    job.begin()
    if job.is_victim:
        for value in model.state_dict().values():
            value.full_tensor()  # guilty
    dist.barrier()  # waiting


def sharded_batches(job: Job) -> None:
    """FSDP2: a rank has a batch less"""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    job.begin()
    for _ in range(1 if job.is_victim else 2):
        model(torch.ones(2, 8)).sum().backward()  # waiting
    dist.barrier()  # guilty


def consolidated(job: Job) -> None:
    """ZeRO: a rank leaves out consolidate_state_dict"""
    model = DistributedDataParallel(nn.Linear(job.size, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(2, job.size)).sum().backward()
    optimizer.step()
    job.begin()
    if not job.is_victim:
        optimizer.consolidate_state_dict(to=(job.victim + 1) % job.ranks)  # waiting
    dist.barrier()  # guilty


def saved_on_one(job: Job) -> None:
    """a rank saves with torch.save, and waits in a barrier that the others leave out"""
    job.begin()
    if job.is_victim:
        torch.save({"x": torch.ones(job.size)}, job.folder / "checkpoint")
        dist.barrier()  # guilty
    x = torch.ones(job.size)
    dist.all_reduce(x)  # waiting
    dist.all_reduce(x)


def checkpoint_of_one(job: Job) -> None:
    """torch.distributed.checkpoint: a rank leaves out save"""
    job.begin()
    if not job.is_victim:
        save({"x": torch.ones(job.size)}, checkpoint_id=job.folder / "checkpoint")  # waiting
    dist.barrier()  # guilty


def key_not_set(job: Job) -> None:
    """a rank does not set a key of the store"""
    store = dist.distributed_c10d._get_default_store()
    job.begin()
    if job.is_victim:
        dist.all_reduce(torch.ones(1))  # guilty
    else:
        store.wait(["ready"])  # waiting


def key_read(job: Job) -> None:
    """a rank gets a key that nobody sets"""
    store = dist.distributed_c10d._get_default_store()
    job.begin()
    if job.is_victim:
        store.get("result")  # guilty
    dist.barrier()  # waiting


def counted(job: Job) -> None:
    """a rank leaves out a barrier by a counter of the store"""
    store = dist.distributed_c10d._get_default_store()
    job.begin()
    if not job.is_victim:
        if store.add("count", 1) == job.ranks:
            store.set("all", "1")
        store.get("all")  # waiting
    dist.barrier()  # guilty


def rendezvous(job: Job) -> None:
    """a rank does not join a second rendezvous"""
    store = dist.distributed_c10d._get_default_store()
    job.begin()
    if not job.is_victim:
        prefix = dist.distributed_c10d.PrefixStore("second", store)
        dist.ProcessGroupGloo(prefix, job.rank, job.ranks, timedelta(hours=1))  # waiting
    dist.barrier()  # guilty
