"""Hangs in sends and receives of PyTorch."""

import torch
import torch.distributed as dist

from tests.hangs.kinds.job import Job


def _next(job: Job) -> int:
    return (job.victim + 1) % job.ranks


def not_received(job: Job) -> None:
    """a rank does not receive what another one sends"""
    job.begin()
    if job.rank == _next(job):
        dist.send(torch.ones(job.size), job.victim)  # guilty
    dist.barrier()  # guilty


def not_sent(job: Job) -> None:
    """a rank does not send what another one receives"""
    job.begin()
    if job.rank == _next(job):
        dist.recv(torch.ones(job.size), job.victim)  # guilty
    dist.barrier()  # guilty


def other_tag(job: Job) -> None:
    """a rank sends with another tag than its peer receives"""
    job.begin()
    if job.is_victim:
        dist.send(torch.ones(job.size), _next(job), tag=5)  # guilty
    elif job.rank == _next(job):
        dist.recv(torch.ones(job.size), job.victim, tag=6)  # guilty
    dist.barrier()  # waiting


def wrong_peer(job: Job) -> None:
    """a rank sends to another rank than the one that receives"""
    job.begin()
    if job.is_victim:
        dist.send(torch.ones(job.size), (job.victim + 2) % job.ranks)  # guilty
    elif job.rank == _next(job):
        dist.recv(torch.ones(job.size), job.victim)  # waiting
    dist.barrier()  # waiting


def ring_of_receives(job: Job) -> None:
    """all ranks receive from the left before they send to the right"""
    job.begin()
    dist.recv(torch.ones(job.size), (job.rank - 1) % job.ranks)  # guilty
    dist.send(torch.ones(job.size), (job.rank + 1) % job.ranks)


def ring_of_sends(job: Job) -> None:
    """all ranks send to the right before they receive from the left"""
    job.begin()
    dist.send(torch.ones(job.size), (job.rank + 1) % job.ranks)  # guilty
    dist.recv(torch.ones(job.size), (job.rank - 1) % job.ranks)


def pipeline_order(job: Job) -> None:
    """a stage of a pipeline receives from the next one before it sends to it"""
    job.begin()
    x = torch.ones(job.size)
    for batch in range(3):
        if job.rank:
            dist.recv(x, job.rank - 1)  # waiting
        if job.rank < job.ranks - 1 and not (job.is_victim and batch):
            dist.send(x, job.rank + 1)
        if job.rank < job.ranks - 1:
            dist.recv(x, job.rank + 1)  # guilty
        if job.rank:
            dist.send(x, job.rank - 1)


def one_microbatch_more(job: Job) -> None:
    """a stage of a pipeline expects one microbatch more"""
    job.begin()
    x = torch.ones(job.size)
    for _ in range(4 if job.is_victim else 3):
        if job.rank:
            dist.recv(x, job.rank - 1)  # guilty
        if job.rank < job.ranks - 1 and not job.is_victim:
            dist.send(x, job.rank + 1)
    dist.all_reduce(x)  # guilty


def batch_without_receive(job: Job) -> None:
    """a rank leaves out a receive in batch_isend_irecv"""
    job.begin()
    x, y = torch.ones(job.size), torch.ones(job.size)
    left, right = (job.rank - 1) % job.ranks, (job.rank + 1) % job.ranks
    operations = [dist.P2POp(dist.isend, x, right)]
    if not job.is_victim:
        operations.append(dist.P2POp(dist.irecv, y, left))
    for work in dist.batch_isend_irecv(operations):
        work.wait()  # waiting
    dist.barrier()  # guilty


def from_any(job: Job) -> None:
    """a rank does not send to a rank that receives from any"""
    job.begin()
    if job.rank == _next(job):
        for _ in range(job.ranks - 1):
            dist.recv(torch.ones(job.size))  # guilty
    elif not job.is_victim:
        dist.send(torch.ones(job.size), _next(job))
    dist.barrier()  # guilty
