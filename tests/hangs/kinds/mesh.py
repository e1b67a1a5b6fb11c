"""Hangs in the groups of a mesh of 2 x 2 x 2 ranks: pipeline, data and tensor parallel."""

import threading
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.hangs.kinds.job import Job

BLOCKS, LAST = 3, 2


class Groups(NamedTuple):
    """The groups of a rank."""

    pp: Any
    dp: Any
    tp: Any


def _groups(job: Job) -> Groups:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    groups = Groups(*(mesh[name].get_group() for name in Groups._fields))
    job.begin()
    return groups


def _peer(job: Job) -> int:
    """Return the rank of the other stage."""
    return (job.rank + 4) % 8


def tensor_left_out(job: Job) -> None:
    """a rank leaves out a collective of its tensor parallel group"""
    groups, x = _groups(job), torch.ones(job.size)
    for block in range(BLOCKS):
        if not (job.is_victim and block == LAST):
            dist.all_reduce(x, group=groups.tp)  # waiting
        dist.all_reduce(x, group=groups.dp)  # guilty
    dist.barrier()  # guilty


def data_left_out(job: Job) -> None:
    """a rank leaves out a collective of its data parallel group"""
    groups, x = _groups(job), torch.ones(job.size)
    for block in range(BLOCKS):
        dist.all_reduce(x, group=groups.tp)  # waiting
        if not (job.is_victim and block == LAST):
            dist.all_reduce(x, group=groups.dp)  # waiting
    dist.barrier()  # guilty


def pipeline_left_out(job: Job) -> None:
    """a rank leaves out a broadcast between stages"""
    groups, x = _groups(job), torch.ones(job.size)
    dist.all_reduce(x, group=groups.tp)
    if not job.is_victim:
        dist.all_reduce(x, group=groups.pp)  # waiting
    dist.all_reduce(x, group=groups.tp)  # guilty
    dist.barrier()  # guilty


def early_barrier(job: Job) -> None:
    """a rank calls the barrier of all ranks before its data parallel group"""
    groups, x = _groups(job), torch.ones(job.size)
    dist.all_reduce(x, group=groups.tp)
    if job.is_victim:
        dist.barrier()  # guilty
    dist.all_reduce(x, group=groups.dp)  # waiting
    dist.barrier()  # waiting


def skipped_block(job: Job) -> None:
    """a rank skips a block"""
    groups, x = _groups(job), torch.ones(job.size)
    for block in range(BLOCKS):
        if job.is_victim and block == LAST:
            continue
        dist.all_reduce(x, group=groups.tp)  # waiting
        dist.all_reduce(x, group=groups.dp)  # waiting
    dist.barrier()  # guilty


def once_more(job: Job) -> None:
    """a rank calls a collective of its data parallel group once more"""
    groups, x = _groups(job), torch.ones(job.size)
    for _ in range(BLOCKS + int(job.is_victim)):
        dist.all_reduce(x, group=groups.dp)  # guilty
    dist.all_reduce(x, group=groups.tp)  # waiting
    dist.barrier()  # waiting


def not_received(job: Job) -> None:
    """a rank does not receive from the other stage"""
    groups, x = _groups(job), torch.ones(job.size)
    if job.rank == (job.victim + 4) % 8:
        dist.send(x, job.victim)  # guilty
    dist.all_reduce(x, group=groups.tp)  # waiting
    dist.barrier()  # guilty


def not_sent(job: Job) -> None:
    """a rank does not send to the other stage"""
    groups, x = _groups(job), torch.ones(job.size)
    if job.rank == (job.victim + 4) % 8:
        dist.recv(x, job.victim)  # guilty
    dist.all_reduce(x, group=groups.dp)  # waiting
    dist.barrier()  # guilty


def dead_lock(job: Job) -> None:
    """a rank waits for a lock before its data parallel group"""
    groups, x = _groups(job), torch.ones(job.size)
    lock = threading.Lock()
    dist.all_reduce(x, group=groups.tp)
    if job.is_victim:
        lock.acquire()
        lock.acquire()  # guilty
    dist.all_reduce(x, group=groups.dp)  # waiting
    dist.all_reduce(x, group=groups.tp)  # waiting
    dist.barrier()  # waiting


def microbatch_more(job: Job) -> None:
    """a rank of the second stage expects one microbatch more"""
    groups, x = _groups(job), torch.ones(job.size)
    for _ in range(BLOCKS + int(job.is_victim)):
        if job.rank < 4:
            dist.send(x, _peer(job))
        else:
            dist.recv(x, _peer(job))  # guilty
    dist.all_reduce(x, group=groups.tp)  # waiting
    dist.barrier()  # guilty


def other_operation(job: Job) -> None:
    """a rank calls another collective of its tensor parallel group"""
    groups, x = _groups(job), torch.ones(job.size)
    if job.is_victim:
        dist.barrier(group=groups.dp)  # guilty
    dist.all_reduce(x, group=groups.tp)  # waiting
    dist.barrier()  # waiting


def wrong_group(job: Job) -> None:
    """a rank uses its pipeline group, not its data parallel one"""
    groups, x = _groups(job), torch.ones(job.size)
    dist.all_reduce(x, group=groups.tp)
    dist.all_reduce(x, group=groups.pp if job.is_victim else groups.dp)  # guilty
    dist.barrier()  # waiting
