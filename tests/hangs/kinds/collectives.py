"""Hangs in collective operations of PyTorch in the group of all ranks."""

from contextlib import suppress

import torch
import torch.distributed as dist

from tests.hangs.kinds.job import Job


def left_out(job: Job) -> None:
    """a rank leaves out an all_reduce"""
    job.begin()
    if not job.is_victim:
        dist.all_reduce(torch.ones(job.size))  # waiting
    dist.barrier()  # guilty


def other_operation(job: Job) -> None:
    """a rank calls all_gather, the others all_reduce"""
    job.begin()
    x = torch.ones(job.size)
    if job.is_victim:
        dist.all_gather([torch.ones(job.size) for _ in range(job.ranks)], x)  # guilty
    else:
        dist.all_reduce(x)  # waiting
    dist.barrier()  # waiting


def other_order(job: Job) -> None:
    """a rank calls barrier and all_reduce in another order"""
    job.begin()
    if job.is_victim:
        dist.barrier()  # guilty
    dist.all_reduce(torch.ones(job.size))  # waiting
    dist.barrier()


def fewer_batches(job: Job) -> None:
    """a rank has a batch less"""
    job.begin()
    for _ in range(2 if job.is_victim else 3):
        dist.all_reduce(torch.ones(job.size))  # waiting
    dist.barrier()  # guilty


def more_batches(job: Job) -> None:
    """a rank has a batch more"""
    job.begin()
    for _ in range(3 if job.is_victim else 2):
        dist.all_reduce(torch.ones(job.size))  # guilty
    dist.broadcast(torch.ones(3), src=0)
    dist.barrier()  # waiting


def ignored_exception(job: Job) -> None:
    """a rank skips a batch after an exception that it ignores"""
    job.begin()
    for batch in range(3):
        with suppress(ValueError):
            x = torch.full((job.size,), float("bad" if job.is_victim and batch == 1 else batch))
            dist.all_reduce(x)  # waiting
    dist.barrier()  # guilty


def in_rank_0(job: Job) -> None:
    """rank 0 alone calls a barrier"""
    job.begin()
    if job.is_victim:
        dist.barrier()  # guilty
    for _ in range(2):
        dist.all_reduce(torch.ones(job.size))  # waiting


def on_condition(job: Job) -> None:
    """a rank alone takes a branch with an all_gather"""
    job.begin()
    loss = torch.full((1,), 9.0 if job.is_victim else 1.0)
    if loss.item() > job.ranks:
        dist.all_gather([torch.zeros(1) for _ in range(job.ranks)], loss)  # guilty
    dist.barrier()  # waiting


def other_objects(job: Job) -> None:
    """a rank broadcasts objects, the others gather them"""
    job.begin()
    if job.is_victim:
        dist.broadcast_object_list([{"a": 1}], src=job.rank)  # guilty
    else:
        dist.all_gather_object([None] * job.ranks, {"rank": job.rank})  # waiting
    dist.barrier()  # guilty


def monitored(job: Job) -> None:
    """a rank leaves out a monitored_barrier"""
    job.begin()
    if not job.is_victim:
        dist.monitored_barrier()  # waiting
    dist.all_reduce(torch.ones(job.size))  # guilty


def asynchronous(job: Job) -> None:
    """a rank leaves out an asynchronous all_reduce"""
    job.begin()
    x = torch.ones(job.size)
    work = None if job.is_victim else dist.all_reduce(x, async_op=True)
    if work is not None:
        work.wait()  # waiting
    dist.barrier()  # guilty


def other_exchange(job: Job) -> None:
    """a rank leaves out an all_to_all"""
    job.begin()
    x = torch.ones(job.size * job.ranks)
    if not job.is_victim:
        dist.all_to_all_single(torch.empty_like(x), x)  # waiting
    dist.all_reduce(x)  # guilty


def file_on_one(job: Job) -> None:
    """a rank finds no checkpoint, and does not take part in loading it"""
    job.begin()
    checkpoint = job.folder / f"ready.{job.ranks if job.is_victim else job.rank}"
    if checkpoint.exists():
        dist.broadcast(torch.ones(job.size), src=job.victim)  # waiting
    dist.barrier()  # guilty
