"""Hangs in JAX with several processes."""

import os

import numpy as np
from jax.experimental import multihost_utils

from tests.hangs.kinds.job import Job


def broadcast(job: Job) -> None:
    """a rank leaves out a broadcast"""
    job.begin()
    if not job.is_victim:
        multihost_utils.broadcast_one_to_all(np.ones(job.size))  # waiting
    multihost_utils.sync_global_devices("end")  # guilty


def slow(job: Job) -> None:
    """a rank waits for a file before a process_allgather"""
    job.begin()
    if job.is_victim:
        _read(job)
    multihost_utils.process_allgather(np.ones(job.size))  # waiting


def _read(job: Job) -> None:
    os.mkfifo(job.folder / "fifo")
    (job.folder / "fifo").read_text()  # guilty
