"""A healthy job: healthy.py NUMBER. Ranks compute, communicate, read, sleep and lock, each in steps of some length."""

import random
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
CHOICE = random.Random(int(sys.argv[1]))  # noqa: S311 - the same on all ranks
# The longest part of a step, in seconds; the imbalance of the ranks; the kind of work.
STEP = CHOICE.choice([0.002, 0.02, 0.1, 0.5])
SLOW_RANK, FACTOR = CHOICE.randrange(WORLD.size), CHOICE.choice([1, 1, 3, 10])
WORK = CHOICE.choice(["compute", "sleep", "read", "lock"])
LOCK = threading.Lock()


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if WORK == "compute":
            np.ones((64, 64)) @ np.ones((64, 64))
        elif WORK == "sleep":
            time.sleep(seconds / 4)
        elif WORK == "read":
            with open("/proc/self/stat") as file:
                file.read()
        else:
            with LOCK:
                time.sleep(seconds / 8)


def main() -> None:
    print("started", flush=True)
    gradient, total = np.ones(1000), np.zeros(1000)
    for _ in range(1_000_000):
        work(STEP * (FACTOR if WORLD.rank == SLOW_RANK else 1) * CHOICE.random())
        WORLD.Allreduce(gradient, total)
        if CHOICE.random() < 0.1:
            WORLD.Barrier()


if __name__ == "__main__":
    main()
