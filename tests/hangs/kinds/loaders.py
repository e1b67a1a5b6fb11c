"""Hangs of one rank in a data loader."""

import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.hangs.kinds.job import Job

LOCK = threading.Lock()


class _Locked(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        with LOCK:  # guilty
            return torch.ones(index + 1)


def worker_lock(job: Job) -> None:
    """a worker that was forked while a lock was held"""
    LOCK.acquire()
    job.begin()
    if job.is_victim:
        list(DataLoader(_Locked(), num_workers=1))
    job.barrier()  # waiting


class _Remote(Dataset[Any]):
    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=8)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            urllib.request.urlopen(f"http://127.0.0.1:{self.server.getsockname()[1]}").read()  # guilty
        return torch.ones(2)


def worker_http(job: Job) -> None:
    """a worker that reads from a server that does not reply"""
    job.begin()
    if job.is_victim:
        list(DataLoader(_Remote(), num_workers=2))
    job.barrier()  # waiting


class _Stopped(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            os.kill(os.getpid(), signal.SIGSTOP)  # guilty
        return torch.ones(2)


def stopped_worker(job: Job) -> None:
    """a worker that is stopped"""
    job.begin()
    if job.is_victim:
        list(DataLoader(_Stopped(), num_workers=1))  # guilty
    job.barrier()  # waiting


class _Stream(IterableDataset[Any]):
    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        yield torch.ones(1)
        with open(self.path) as file:  # guilty
            yield from file


def worker_file(job: Job) -> None:
    """a worker that opens a file that nobody provides"""
    path = str(job.folder / "shard")
    job.begin()
    if job.is_victim:
        os.mkfifo(path)
        list(DataLoader(_Stream(path), num_workers=1))
    job.barrier()  # waiting


class _Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return _read_shard() if index == 6 else torch.ones(1)


def _read_shard() -> Any:
    threading.Event().wait()  # guilty


def own_process(job: Job) -> None:
    """a data set that waits, without workers"""
    job.begin()
    if job.is_victim:
        list(DataLoader(_Plain()))
    job.barrier()  # waiting


class _Crowded(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        while index == 2:
            signal.pause()  # guilty
        return torch.ones(2)


def one_of_workers(job: Job) -> None:
    """one of several workers waits for a signal"""
    job.begin()
    if job.is_victim:
        list(DataLoader(_Crowded(), num_workers=2, batch_size=1, prefetch_factor=2))
    job.barrier()  # waiting
