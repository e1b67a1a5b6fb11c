"""Cost and findings of -dump_iter and -rebind_iter: `python -m tests.bench.rebind`.

Costs are CPU seconds of each part, compared with the time of an iteration: on a machine of two cores no job repeats to
within 0.1 %.
"""

import io
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddlrun import ddl
from ddlrun.ddl.monitor.meters import TrafficMeter
from ddlrun.ddl.monitor.procfs import move_threads, read_load
from ddlrun.ddl.monitor.straggler_detection import StragglerDetector
from ddlrun.ddl.schedules.schedule import Message, ScheduleStep
from tests.bench.options import bench_parser
from tests.conftest import MPIRUNS
from tests.ddl.slow_series import checks

ROOT = Path(__file__).parents[2]
SLOW_RANKS = ROOT / "tests" / "ddl" / "slow_ranks.py"
EVERY = 100  # iterations from one report or check to the next
MIB = 2**20


class Sizes(NamedTuple):
    """Rounds of each cost, calls per round, trials of a detection, and checks without a slow learner."""

    rounds: int
    calls: int
    trials: int
    checked: int


FULL = Sizes(rounds=25, calls=400, trials=300, checked=10_000)
SMOKE = Sizes(rounds=1, calls=EVERY, trials=1, checked=3)
# Two ranks exchange rows as the library does; rank 0 prints the least microseconds from posting a row to the check.
EXCHANGE = """
import time, numpy as np
from dataclasses import astuple
from mpi4py import MPI
from ddlrun.ddl.monitor.instrumented_learner import StatsExchange
from ddlrun.ddl.monitor.straggler_detection import IterationStats, StragglerDetector
exchange, detector, took = StatsExchange(MPI.COMM_WORLD, 9), StragglerDetector(), []
for _ in range(200):
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    exchange.post(astuple(IterationStats(0.1, 0.001, 0.1)))
    while (rows := exchange.poll()) is None: pass
    detector.check([IterationStats(*row) for row in rows.tolist()])
    took.append(time.perf_counter() - start)
exchange.free()
if MPI.COMM_WORLD.rank == 0: print(min(took) * 1e6)
"""


def seconds_of(call: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of a call, without those of other processes."""
    start = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - start) / times


def per_iteration(sizes: Sizes) -> tuple[float, float]:
    """Return the seconds per iteration that monitoring adds, and that a report every EVERY iterations adds."""
    x, samples = np.ones(16), []
    for options in ("", f"-dump_iter {10**9}", f"-dump_iter {EVERY}") * sizes.rounds:
        with redirect_stderr(io.StringIO()), ddl.init(options):
            samples.append(seconds_of(lambda: ddl.all_reduce(x, in_place=True), sizes.calls))
    plain, monitored, reported = (statistics.median(samples[at::3]) for at in range(3))
    return monitored - plain, max(reported - monitored, 0.0)


def per_step(sizes: Sizes) -> float:
    """Return the seconds of the traffic meter for one step of one chunk."""
    meter = TrafficMeter({1: 0}, ["ring"])
    step = ScheduleStep(sends=(Message(1, 0, 9),), receives=(Message(1, 9, 18),))

    def measure_step() -> None:
        meter.begin(step, 4)
        meter.end(step)

    return statistics.median(seconds_of(measure_step, sizes.calls) for _ in range(sizes.rounds))


def exchanged() -> float:
    """Return the seconds of one exchange between two ranks, and of the check."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = [MPIRUNS[5], "-n", "2", sys.executable, "-c", EXCHANGE]
    return float(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout) / 1e6


def moved(threads: int, sizes: Sizes) -> tuple[float, float]:
    """Return the median and the longest time of moving a process with this many threads."""
    cpus, wake, times = sorted(os.sched_getaffinity(0)), threading.Event(), []
    others = [threading.Thread(target=wake.wait) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    for turn in range(sizes.rounds):
        start = time.perf_counter()
        count = move_threads(frozenset({cpus[turn % len(cpus)]}))
        times.append(time.perf_counter() - start)
        assert count >= threads  # numpy has threads of its own
    load = seconds_of(read_load, sizes.rounds)
    print(f"reading the load of {threads} threads: {load * 1e6:.0f} us, once per check of a slow learner")
    move_threads(frozenset(cpus))
    wake.set()
    return statistics.median(times), max(times)


def costs(sizes: Sizes) -> None:
    monitored, reported = per_iteration(sizes)
    step, row = per_step(sizes), exchanged()
    print(f"monitoring: {monitored * 1e6:.2f} us per iteration; a report every {EVERY}: {reported * 1e6:.2f} us more")
    print(
        f"a check of two ranks with its exchange: {row * 1e6:.0f} us; a step of one chunk, metered: {step * 1e6:.2f} us"
    )
    # 16 MiB: chunks of 96 KiB over 2x2x2 (6 steps), of 512 KiB over two ranks of one host (2 steps).
    for name, whole, chunk, steps in (
        ("a step of 100 ms", 0.1, 96 * 1024, 6),
        ("16 MiB over links of 200 and 100 Mbit/s alone", 1.42, 96 * 1024, 6),
        ("16 MiB between two ranks of a host alone", 0.0022, 512 * 1024, 2),
    ):
        metered = step * steps * -(-16 * MIB // chunk)
        added = monitored + reported + (2 * row + metered) / EVERY
        print(f"  both every {EVERY} iterations, share of {name}: {added / whole:.4%}")
    middle, most = moved(64, sizes)
    print(f"moving 64 threads: {middle * 1e3:.2f} ms, at most {most * 1e3:.2f} (goal 1)")


def detection(sizes: Sizes) -> None:
    print("share of slow learners found at the third check (noise 5 %; hosts +-1.5 %); every: iterations per check")
    print("learners  every   8 % slow  10 % slow  12 % slow   false alarms")
    for learners in (2, 3, 8, 32):
        for window in (20, 100):
            rates = [detection_rate(learners, window, slow, sizes.trials) for slow in (1.08, 1.10, 1.12)]
            detector = StragglerDetector()
            series = checks(1, learners=learners, window=window, number=sizes.checked)
            alarms = sum(len(detector.check(rows)) for rows in series)
            shown = "  ".join(f"{rate:9.1%}" for rate in rates)
            print(f"{learners:8}  {window:5}  {shown}   {alarms} in {sizes.checked} checks", flush=True)


def detection_rate(learners: int, window: int, slow: float, trials: int) -> float:
    count = 0
    for seed in range(trials):
        detector = StragglerDetector()
        for rows in checks(seed, learners=learners, window=window, number=3, slow=slow):
            findings = detector.check(rows)
        if any(finding.rank == learners - 1 for finding in findings):
            count += 1
    return count / trials


def cure() -> None:
    """Put a busy process on a learner's core, and show the time of its work before and after the move."""
    for major, mpirun in MPIRUNS.items():
        if shutil.which(mpirun) is None:
            print(f"Open MPI {major}: not installed")
            continue
        argv = [
            sys.executable,
            "-m",
            "ddlrun",
            "launch",
            "--mpirun",
            mpirun,
            "--allow-run-as-root",
            "--output",
            "no-tag",
        ]
        argv += ["-np", "2", "--reserve-cores", str(len(os.sched_getaffinity(0)) - 1)]
        env = {**os.environ, "DDL_OPTIONS": "-mode r:2 -rebind_iter 5"}
        argv += [sys.executable, str(SLOW_RANKS)]
        done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stderr}")
        print(f"Open MPI {major}: a busy process on a learner's core\n{done.stdout}")
        print(*(line for line in done.stderr.splitlines() if "ddlrun.ddl.monitor: rank 0" in line), sep="\n")


def main() -> None:
    sizes = SMOKE if bench_parser(__doc__).parse_args().smoke else FULL
    print(json.dumps({"load": os.getloadavg(), "cores": os.cpu_count()}))
    costs(sizes)
    detection(sizes)
    cure()


if __name__ == "__main__":
    main()
