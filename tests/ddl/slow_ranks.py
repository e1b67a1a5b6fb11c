"""A rank of test_core_rebinding.py: a busy process comes to rank 0's core, and -rebind_iter moves rank 0 away.

    DDL_OPTIONS='-mode r:2 -rebind_iter 5' ddlrun launch -np 2 --reserve-cores 1 --overload python slow_ranks.py

Rank 1 sleeps as long as rank 0 needs alone, on any core, as if it worked elsewhere: the machine need not have a third
core, and the busy processes do not make it slow, so it leaves the core that is kept to rank 0. Rank 0 prints its CPUs
whenever they change, and its time in all phases.
"""

import os
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

from ddlrun import ddl

ALONE, MOST = 12, 800
AFTER = 40  # iterations after a move, in which it is judged
BUSY_PROCESS = [sys.executable, "-c", "while True: pass"]
STEPS = 150


def work() -> float:
    """Work for a while on one core; return the seconds that it took."""
    start = time.perf_counter()
    values = np.arange(20_000, dtype=np.float64)
    for _ in range(STEPS):
        values = np.sqrt(values + 1.0)
    return time.perf_counter() - start


def step(gradient: np.ndarray, alone: float, *, enough: bool) -> tuple[float, bool]:
    """Do one iteration; return what its computation took, and whether rank 0 has enough."""
    start = time.perf_counter()
    work() if ddl.rank() == 0 else time.sleep(alone)
    took = time.perf_counter() - start
    gradient[:] = enough
    ddl.all_reduce(gradient, in_place=True)
    return took, bool(gradient[0])


def main() -> None:
    ddl.init()
    if ddl.rank() == 1:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    gradient = np.ones(50_000, np.float32)
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # one more thread to be moved
    alone = ddl.bcast(min(work() for _ in range(ALONE)))
    busy = [subprocess.Popen(BUSY_PROCESS) for _ in range(2)] if ddl.rank() == 0 else []
    cpus, taken, moved = os.sched_getaffinity(0), list[float](), MOST
    try:
        for number in range(MOST):
            took, enough = step(gradient, alone, enough=number > moved + AFTER)
            taken.append(took)
            if enough:
                break
            now = os.sched_getaffinity(0)
            if ddl.rank() == 0 and now != cpus:
                threads = {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}
                first, taken, moved = taken, [], min(moved, number)
                print(f"{sorted(cpus)} to {sorted(now)}, all threads: {threads == {frozenset(now)}}", flush=True)
                print(f"alone {alone * 1e3:.1f} ms, then {statistics.median(first) * 1e3:.1f} ms", flush=True)
                cpus = now
        if ddl.rank() == 0:
            print(f"at the end {statistics.median(taken) * 1e3:.1f} ms", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
