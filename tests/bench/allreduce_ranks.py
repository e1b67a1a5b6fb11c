"""A rank of tests.bench.allreduce: times algorithms in turn; rank 0 prints a JSON line a run.

    allreduce_ranks.py FOLDER ROUNDS MIB,MIB... NAME=TUNING ...

NAME is `mpi` (MPI_Allreduce on the world), `mpi-host` (on a communicator in host order) or a DDL string, with a tuning
or nothing after the `=`. Bytes on uplinks are asked for in FOLDER: whoever runs this answers (tests.bench.allreduce).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.begin import begin

WORLD = MPI.COMM_WORLD


def counters(folder: Path) -> list[int]:
    """Ask for the bytes that each rack's uplink has carried so far; nothing where nobody answers."""
    ask, answer = folder / "ask", folder / "answer"
    ask.touch()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            found: list[int] = json.loads(answer.read_text())
            answer.unlink()
            return found
        time.sleep(0.002)
    return []


def algorithm(text: str) -> Callable[[np.ndarray], object]:
    name, _, tuning = text.partition("=")
    if name == "mpi":
        return lambda x: WORLD.Allreduce(MPI.IN_PLACE, x)
    learner = begin(f"-mode {name}" if name != "mpi-host" else "-mode r", WORLD, tuning, os.environ)
    if name == "mpi-host":
        comm = learner.grid.communicator(learner.grid.axes)
        return lambda x: comm.Allreduce(MPI.IN_PLACE, x)
    return lambda x: learner.all_reduce(x, "sum", "", True)


def timed(run: Callable[[np.ndarray], object], count: int, folder: Path) -> dict[str, object]:
    """Run once; return the slowest rank's seconds, all ranks' CPU seconds, bytes on each uplink."""
    x = np.random.default_rng(WORLD.rank).integers(0, 100, count).astype(np.float32)
    before = counters(folder) if WORLD.rank == 0 else []
    WORLD.Barrier()
    cpu, start = time.process_time(), time.perf_counter()
    run(x)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    seconds, cpu = WORLD.allreduce(seconds, MPI.MAX), WORLD.allreduce(cpu)
    after = counters(folder) if WORLD.rank == 0 else []
    exact = sum(np.random.default_rng(rank).integers(0, 100, count) for rank in range(WORLD.size))
    right = WORLD.allreduce(bool((x == exact).all()), MPI.LAND)
    carried = [late - early for late, early in zip(after, before, strict=True)]
    return {"seconds": seconds, "cpu": cpu, "bytes": carried, "right": right}


def main() -> None:
    folder, rounds, sizes, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    runs = {name: algorithm(name) for name in names}
    for mib in map(float, sizes.split(",")):
        for number in range(rounds + 1):
            for name, run in runs.items():
                found = timed(run, int(mib * 262144), folder)
                if WORLD.rank == 0 and number:
                    sys.stdout.write(json.dumps({"name": name, "mib": mib, **found}) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
