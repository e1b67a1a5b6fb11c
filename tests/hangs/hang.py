"""A job of at least three MPI ranks that hangs in one way after the other: hang.py FOLDER HANG...

Each hang lasts until the file FOLDER/HANG exists: threads then release it, with calls of their own where the calls of
ranks do not match. A comment marks the line at which the guilty rank is, `guilty: HANG`, and that at which the others
wait, `waiting: HANG`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

FOLDER = Path(sys.argv[1])
WORLD = MPI.COMM_WORLD
RANK = WORLD.rank
GUILTY = 1


def when_over(hang: str, action: Callable[[], object]) -> None:
    """Do something in a thread once the test has seen a hang."""

    def wait() -> None:
        while not (FOLDER / hang).exists():
            time.sleep(0.05)
        action()

    threading.Thread(target=wait, daemon=True, name="release").start()


def missed_collective(hang: str, first: MPI.Intracomm, second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        when_over(hang, lambda: first.allreduce(RANK))
    else:
        when_over(hang, second.Barrier)
        first.allreduce(RANK)  # waiting: missed_collective
        return
    second.Barrier()  # guilty: missed_collective


def different_order(hang: str, first: MPI.Intracomm, second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        when_over(hang, lambda: first.allreduce(RANK))
        second.Barrier()  # guilty: different_order
    else:
        when_over(hang, second.Barrier)
        first.allreduce(RANK)  # waiting: different_order


def size_mismatch(hang: str, first: MPI.Intracomm, second: MPI.Intracomm) -> None:
    """Average arrays in parts of equal size; one rank's array has a part more."""
    parts = np.zeros((3 if GUILTY == RANK else 2, 100))
    when_over(hang, second.Barrier if GUILTY == RANK else lambda: first.Allreduce(MPI.IN_PLACE, np.zeros(100)))
    for part in parts:
        first.Allreduce(MPI.IN_PLACE, part)  # guilty: size_mismatch
    if GUILTY != RANK:
        second.Barrier()  # waiting: size_mismatch


def barrier_in_rank_0(hang: str, first: MPI.Intracomm, second: MPI.Intracomm) -> None:
    if RANK == 0:
        when_over(hang, second.Barrier)
        first.Barrier()  # guilty: barrier_in_rank_0
        return
    when_over(hang, first.Barrier)
    second.Barrier()  # waiting: barrier_in_rank_0


def infinite_loop(hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        spin(hang)
    first.allreduce(RANK)  # waiting: infinite_loop


def spin(hang: str) -> None:
    over = threading.Event()
    when_over(hang, over.set)
    sum(1 for _ in iter(over.is_set, True))  # guilty: infinite_loop


def dead_lock(hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        lock = threading.Lock()
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        when_over(hang, lock.release)
        with lock:  # guilty: dead_lock
            pass
    first.allreduce(RANK)  # waiting: dead_lock


def stopped(_hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        os.kill(os.getpid(), signal.SIGSTOP)  # guilty: stopped
    first.allreduce(RANK)  # waiting: stopped


def stuck_read(hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        fifo = FOLDER / "fifo"
        os.mkfifo(fifo)
        when_over(hang, lambda: fifo.write_text("data"))
        fifo.read_text()  # guilty: stuck_read
    first.allreduce(RANK)  # waiting: stuck_read


def full_pipe(hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        reader, writer = os.pipe()
        when_over(hang, lambda: os.read(reader, 1 << 20))
        os.write(writer, bytes(1 << 17))  # guilty: full_pipe
    first.allreduce(RANK)  # waiting: full_pipe


def data_loader(_hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        load()
    first.allreduce(RANK)  # waiting: data_loader


class LockedSamples:
    """Samples behind a lock that the loader's process holds while it forks."""

    lock = threading.Lock()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        when_over("data_loader", self.lock.release)
        with self.lock:  # guilty: data_loader
            return index


def load() -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - for this hang alone

    samples: Any = LockedSamples()
    with samples.lock:
        loader = iter(DataLoader(samples, num_workers=1))
    for _ in loader:  # loading: data_loader
        pass


def returned_early(_hang: str, first: MPI.Intracomm, _second: MPI.Intracomm) -> None:
    if GUILTY == RANK:
        sys.exit()
    first.Barrier()  # waiting: returned_early


def main() -> None:
    for hang in sys.argv[2:]:
        first, second = WORLD.Dup(), WORLD.Dup()
        WORLD.Barrier()
        (FOLDER / f"{hang}.{RANK}").touch()
        print(hang, flush=True)
        globals()[hang](hang, first, second)


if __name__ == "__main__":
    main()
