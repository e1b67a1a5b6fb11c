"""Hangs in Horovod."""

import threading

import horovod.torch as hvd
import torch

from tests.hangs.kinds.job import Job


def left_out(job: Job) -> None:
    """a rank leaves out an allreduce"""
    job.begin()
    if not job.is_victim:
        hvd.allreduce(torch.ones(job.size), name="loss")  # waiting
    hvd.barrier()  # guilty


def other_name(job: Job) -> None:
    """a rank reduces another tensor"""
    job.begin()
    hvd.allreduce(torch.ones(job.size), name="accuracy" if job.is_victim else "loss")  # guilty


def dead_lock(job: Job) -> None:
    """a rank waits for a lock before an allreduce"""
    job.begin()
    if job.is_victim:
        threading.Event().wait()  # guilty
    hvd.allreduce(torch.ones(job.size), name="loss")  # waiting
