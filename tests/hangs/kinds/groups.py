"""Hangs in groups of some ranks of PyTorch."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from tests.hangs.kinds.job import Job


def not_created(job: Job) -> None:
    """a rank does not create a group that the others create"""
    job.begin()
    if not job.is_victim:
        dist.new_group(list(range(job.ranks)))  # waiting
    dist.barrier()  # guilty


def other_members(job: Job) -> None:
    """a rank creates a group with other members"""
    job.begin()
    ranks = list(range(job.ranks))
    group = dist.new_group(ranks[:-1] if job.is_victim else ranks)
    dist.all_reduce(torch.ones(job.size), group=group)  # guilty
    dist.barrier()  # waiting


def swapped(job: Job) -> None:
    """a rank uses two groups in another order"""
    first, second = dist.new_group(), dist.new_group()
    job.begin()
    x = torch.ones(job.size)
    if job.is_victim:
        dist.all_reduce(x, group=second)  # guilty
        dist.all_reduce(x, group=first)
    else:
        dist.all_reduce(x, group=first)  # waiting
        dist.all_reduce(x, group=second)


def swapped_in_one_line(job: Job) -> None:
    """a rank uses two groups in another order, in the same line"""
    groups = dist.new_group(), dist.new_group()
    job.begin()
    for group in groups[::-1] if job.is_victim else groups:
        dist.all_reduce(torch.ones(job.size), group=group)  # guilty


def half_left_out(job: Job) -> None:
    """a rank leaves out a collective of the group of its half"""
    half = job.ranks // 2
    groups = [dist.new_group(list(ranks)) for ranks in (range(half), range(half, job.ranks))]
    job.begin()
    x = torch.ones(job.size)
    if not job.is_victim:
        dist.all_reduce(x, group=groups[job.rank // half])  # waiting
    dist.all_reduce(x)  # guilty


def nested(job: Job) -> None:
    """a rank leaves out the inner one of three nested groups"""
    inner, outer = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    job.begin()
    x = torch.ones(job.size)
    for turn in range(2):
        if job.rank < 2 and not (job.is_victim and turn == 1):
            dist.all_reduce(x, group=inner)  # waiting
        if job.rank < 3:
            dist.all_reduce(x, group=outer)  # guilty
        dist.all_reduce(x)  # waiting


def wrong_group(job: Job) -> None:
    """a rank calls a collective in the group of all ranks, not in its own"""
    half = job.ranks // 2
    groups = [dist.new_group(list(ranks)) for ranks in (range(half), range(half, job.ranks))]
    job.begin()
    x = torch.ones(job.size)
    dist.all_reduce(x, group=None if job.is_victim else groups[job.rank // half])  # guilty
    dist.barrier()  # waiting


def slow_member(job: Job) -> None:
    """a rank waits for a file, and with it its group and the others"""
    half = job.ranks // 2
    groups = [dist.new_group(list(ranks)) for ranks in (range(half), range(half, job.ranks))]
    fifo = job.folder / "fifo"
    job.begin()
    if job.is_victim:
        _read(fifo)
    dist.all_reduce(torch.ones(job.size), group=groups[job.rank // half])  # waiting
    dist.barrier()  # waiting


def _read(fifo: Path) -> None:
    os.mkfifo(fifo)
    fifo.read_text()  # guilty
