"""A rank of tests.bench.allreduce: times algorithms in turn.

    allreduce_ranks.py FOLDER PLAN

PLAN is JSON: {"rounds": N, "budget": SECONDS, "in_a_row": MIB, "sizes": [[MIB, [NAME, ...]], ...]}; tests.bench.cells
says what is meant, tests.bench.baselines what the names are.
Rank 0 writes to the pipe FOLDER/said: a `?` asks for the bytes that each rack's uplink has carried, which come from the
pipe FOLDER/answer; anything else is a JSON line of what was measured at a size. Without those pipes it prints.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from tests.bench.baselines import WORLD, Algorithm, algorithm

LEAST = 3
# A run of so many seconds needs no other before it to be warm.
LONG = 2.5
MOST = 256


class Sample(NamedTuple):
    """Of one allreduce: the slowest rank's seconds, all ranks' CPU seconds, bytes on each uplink, whether right."""

    seconds: float
    cpu: float
    bytes: list[float]
    right: bool


class Observer:
    """Whoever runs this job, and sees what it cannot see itself; rank 0 alone talks."""

    def __init__(self, folder: Path) -> None:
        self._speaks = WORLD.rank == 0
        self._heard = self._speaks and (folder / "said").is_fifo()
        self._said = (folder / "said").open("w") if self._heard else sys.stdout
        self._answer = (folder / "answer").open() if self._heard else None

    def carried(self) -> list[int]:
        """Return the bytes that each uplink has carried so far; nothing where nobody answers."""
        if self._answer is None:
            return []
        self._write("?")
        found: list[int] = json.loads(self._answer.readline())
        return found

    def tell(self, found: dict[str, Any]) -> None:
        if self._speaks:
            self._write(json.dumps(found))

    def _write(self, line: str) -> None:
        self._said.write(line + "\n")
        self._said.flush()


def timed(one: Algorithm, base: Any, repeat: int, observer: Observer) -> Sample:
    """Reduce `repeat` times in a row; of several the first is checked, before the clock starts."""
    x = base * np.float32(WORLD.rank + 1)
    exact = base * np.float32(WORLD.size * (WORLD.size + 1) / 2)
    with one.turn():
        right = True
        if repeat > 1:
            right = one.right(one.run(x), exact)
            x[:] = 0
        before = observer.carried()
        WORLD.Barrier()
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(repeat):
            result = one.run(x)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        seconds, cpu = WORLD.allreduce(seconds, MPI.MAX) / repeat, WORLD.allreduce(cpu) / repeat
        after = observer.carried()
    if repeat == 1:
        right = one.right(result, exact)
    carried = [(late - early) / repeat for late, early in zip(after, before, strict=True)]
    return Sample(seconds, cpu, carried, WORLD.allreduce(right, MPI.LAND))


def contest(runs: dict[str, Algorithm], mib: float, plan: dict[str, Any], observer: Observer) -> list[dict[str, Any]]:
    """Let algorithms take turns at one size; who has used its seconds sits out after LEAST runs."""
    count = int(mib * 2**18)
    repeat = min(max(int(plan["in_a_row"] / mib), 1), MOST)
    base = np.random.default_rng(count).integers(0, 100, count).astype(np.float32)
    for one in runs.values():
        one.get_ready(count, repeat)
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(plan["rounds"] + 1):
        for name, one in runs.items():
            spent = sum(sample.seconds for sample in samples[name]) * repeat
            if len(samples[name]) >= LEAST and spent > plan["budget"]:
                continue
            sample = timed(one, base, repeat, observer)
            if number or sample.seconds * repeat > LONG:
                samples[name].append(sample)
    return [result(name, runs[name].note, mib, repeat, samples[name]) for name in runs]


def result(name: str, note: str, mib: float, repeat: int, samples: list[Sample]) -> dict[str, Any]:
    columns = {field: [getattr(sample, field) for sample in samples] for field in ("seconds", "cpu", "bytes")}
    right = all(sample.right for sample in samples)
    return {"algorithm": name, "mib": mib, "note": note, "repeat": repeat, "right": right, **columns}


def made(names: list[str]) -> tuple[dict[str, Algorithm], dict[str, str]]:
    """Make the algorithms; return them, and for others why they cannot be had."""
    found, missing = {}, {}
    for name in names:
        try:
            found[name] = algorithm(name)
        except ImportError as error:
            missing[name] = str(error)
    return found, missing


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    observer = Observer(folder)
    runs, missing = made(list(dict.fromkeys(name for _, names in plan["sizes"] for name in names)))
    observer.tell({"openmpi": MPI.Get_library_version().split(",")[0], "missing": missing})
    for mib, names in plan["sizes"]:
        taking_part = {name: runs[name] for name in names if name in runs}
        observer.tell({"results": contest(taking_part, mib, plan, observer)})


if __name__ == "__main__":
    main()
