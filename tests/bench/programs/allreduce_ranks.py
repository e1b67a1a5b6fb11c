"""A rank of tests.bench.allreduce: times algorithms in turn.

    allreduce_ranks.py FOLDER PLAN

PLAN is JSON: {"rounds": N, "budget": SECONDS, "in_a_row": MIB, "pause": SECONDS, "sizes": [[MIB, [NAME, ...]], ...]};
tests.bench.cells describes the fields, tests.bench.baselines and tests.bench.sharded the names.
Rank 0 writes to the pipe FOLDER/messages: a line `?` queries the bytes that each rack's uplink has carried, and the
reply comes from the pipe FOLDER/replies; every other line is JSON, the results at a size. Without pipes it prints.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ddlrun.managers.program_mpi import name_library
from tests.bench.baselines import WORLD, Algorithm
from tests.bench.sharded import make

LEAST = 3
# A first run that takes longer than this counts: its share of warming up is small.
LONG = 2.5
MOST = 256


class Sample(NamedTuple):
    """One allreduce: the slowest rank's seconds, all ranks' CPU seconds, bytes on each uplink, correctness."""

    seconds: float
    cpu: float
    bytes: list[float]
    correct: bool


class Observer:
    """The process that started this job; rank 0 alone exchanges messages with it."""

    def __init__(self, folder: Path) -> None:
        self._is_root = WORLD.rank == 0
        has_pipes = self._is_root and (folder / "messages").is_fifo()
        self._messages = (folder / "messages").open("w") if has_pipes else sys.stdout
        self._replies = (folder / "replies").open() if has_pipes else None

    def carried(self) -> list[int]:
        """Return the bytes that each uplink has carried so far; an empty list without pipes."""
        if self._replies is None:
            return []
        self._write("?")
        reply: list[int] = json.loads(self._replies.readline())
        return reply

    def send(self, message: dict[str, Any]) -> None:
        if self._is_root:
            self._write(json.dumps(message))

    def _write(self, line: str) -> None:
        self._messages.write(line + "\n")
        self._messages.flush()


class Runs(NamedTuple):
    """Runs that are timed together: how many in a row, and the seconds without traffic before them."""

    repeat: int
    pause: float


def time_runs(algorithm: Algorithm, base: Any, runs: Runs, observer: Observer) -> Sample:
    """Reduce several times in a row; if more than once, check an extra run before the clock starts."""
    repeat = runs.repeat
    x = base * np.float32(WORLD.rank + 1)
    exact = base * np.float32(WORLD.size * (WORLD.size + 1) / 2)
    with algorithm.turn():
        correct = True
        if repeat > 1:
            correct = algorithm.is_correct(algorithm.run(x), exact)
            x[:] = 0
        before = observer.carried()
        WORLD.Barrier()
        time.sleep(runs.pause)
        WORLD.Barrier()
        cpu, start = algorithm.clock(), time.perf_counter()
        for _ in range(repeat):
            result = algorithm.run(x)
        seconds, cpu = time.perf_counter() - start, algorithm.clock() - cpu
        seconds, cpu = WORLD.allreduce(seconds, MPI.MAX) / repeat, WORLD.allreduce(cpu) / repeat
        after = observer.carried()
    if repeat == 1:
        correct = algorithm.is_correct(result, exact)
    carried = [(late - early) / repeat for late, early in zip(after, before, strict=True)]
    return Sample(seconds, cpu, carried, WORLD.allreduce(correct, MPI.LAND))


def compare(runs: dict[str, Algorithm], mib: float, plan: dict[str, Any], observer: Observer) -> list[dict[str, Any]]:
    """Let algorithms take turns at one size; one that has used its budget stops after LEAST runs."""
    count = int(mib * 2**18)
    repeat = min(max(int(plan["in_a_row"] / mib), 1), MOST)
    base = np.random.default_rng(count).integers(0, 100, count).astype(np.float32)
    for algorithm in runs.values():
        algorithm.prepare(count, repeat)
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(plan["rounds"] + 1):
        for name, algorithm in runs.items():
            spent = sum(sample.seconds for sample in samples[name]) * repeat
            if len(samples[name]) >= LEAST and spent > plan["budget"]:
                continue
            sample = time_runs(algorithm, base, Runs(repeat, plan["pause"]), observer)
            if number or sample.seconds * repeat > LONG:
                samples[name].append(sample)
    fixed = {"mib": mib, "repeat": repeat}
    return [fixed | {"algorithm": name, "note": runs[name].note} | columns_of(samples[name]) for name in runs]


def columns_of(samples: list[Sample]) -> dict[str, Any]:
    columns = {field: [getattr(sample, field) for sample in samples] for field in ("seconds", "cpu", "bytes")}
    return {"right": all(sample.correct for sample in samples), **columns}


def make_all(names: list[str]) -> tuple[dict[str, Algorithm], dict[str, str]]:
    """Return the algorithms, and for those that are not available the reason."""
    runs, missing = {}, {}
    for name in names:
        try:
            runs[name] = make(name)
        except ImportError as error:
            missing[name] = str(error)
    return runs, missing


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    observer = Observer(folder)
    runs, missing = make_all(list(dict.fromkeys(name for _, names in plan["sizes"] for name in names)))
    observer.send({"mpi": name_library(MPI.Get_library_version()), "missing": missing})
    for mib, names in plan["sizes"]:
        present = {name: runs[name] for name in names if name in runs}
        observer.send({"results": compare(present, mib, plan, observer)})


if __name__ == "__main__":
    main()
