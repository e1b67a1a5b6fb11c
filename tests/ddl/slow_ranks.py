"""A rank of test_core_rebinding.py: busy processes start on rank 0's core, and -rebind_iter moves rank 0 away.

    DDL_OPTIONS='-mode r:2 -rebind_iter 5' ddlrun launch -np 2 --reserve-cores 1 python slow_ranks.py

Rank 1 sleeps, on any core, for half the time that rank 0 works when it is alone, as if it worked elsewhere. So the
machine needs no third core, neither the busy processes nor other work on the machine make rank 1 the slow one, and the
reserved core is left to rank 0. Rank 0 prints its CPUs whenever they change, and its time in all phases.
"""

import os
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

from ddlrun import ddl

WORKS_ALONE, MAX_ITERATIONS = 12, 800
AFTER = 40  # iterations in which a move is judged
BUSY_PROCESS = [sys.executable, "-c", "while True: pass"]
STEPS = 150


def work() -> float:
    """Compute for a while on one core; return the seconds that it took."""
    start = time.perf_counter()
    values = np.arange(20_000, dtype=np.float64)
    for _ in range(STEPS):
        values = np.sqrt(values + 1.0)
    return time.perf_counter() - start


def step(gradient: np.ndarray, alone: float, *, finished: bool) -> tuple[float, bool]:
    """Run an iteration; return the seconds of its computation, and True if rank 0 is finished."""
    start = time.perf_counter()
    if ddl.rank() == 0:
        work()
    else:
        time.sleep(alone / 2)
    took = time.perf_counter() - start
    gradient[:] = finished
    ddl.all_reduce(gradient, in_place=True)
    return took, bool(gradient[0])


def main() -> None:
    ddl.init()
    if ddl.rank() == 1:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    gradient = np.ones(50_000, np.float32)
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # another thread to move
    alone = ddl.bcast(min(work() for _ in range(WORKS_ALONE)))
    busy = [subprocess.Popen(BUSY_PROCESS) for _ in range(2)] if ddl.rank() == 0 else []
    cpus, seconds, moved = os.sched_getaffinity(0), list[float](), MAX_ITERATIONS
    try:
        for number in range(MAX_ITERATIONS):
            took, finished = step(gradient, alone, finished=number > moved + AFTER)
            seconds.append(took)
            if finished:
                break
            now = os.sched_getaffinity(0)
            if ddl.rank() == 0 and now != cpus:
                threads = {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}
                before, seconds, moved = seconds, [], min(moved, number)
                print(f"{sorted(cpus)} to {sorted(now)}, all threads: {threads == {frozenset(now)}}", flush=True)
                print(f"alone {alone * 1e3:.1f} ms, then {statistics.median(before) * 1e3:.1f} ms", flush=True)
                cpus = now
        if ddl.rank() == 0:
            print(f"at the end {statistics.median(seconds) * 1e3:.1f} ms", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
