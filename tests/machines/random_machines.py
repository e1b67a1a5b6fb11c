"""Comparison of ddlrun with real mpiruns on many random machines.

    python -m tests.machines.random_machines MACHINES [FIRST]

judges the machines FIRST, FIRST + 1, ... by Open MPI 4 and 5, and prints how often plans and lint agree with them. Of
each kind of disagreement it prints an example, reduced to the smallest machine that shows it. mpirun is that of MPIRUN4
or MPIRUN5, or of the virtual environment.
"""

import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddlrun.managers.openmpi.dialects import parse_program
from tests.machines.random_descriptions import describe, options
from tests.machines.random_judge import ChosenManager, Judgement, Result, judge_again, judge_gpus, judge_tree
from tests.machines.random_reduction import reduce_shape
from tests.machines.random_shapes import Shape, random_shape
from tests.machines.random_trees import facts_of, write_tree

PATHS = {
    4: os.environ.get("MPIRUN4", str(Path(sys.prefix) / "openmpi4/bin/mpirun")),
    5: os.environ.get("MPIRUN5", str(Path(sys.prefix) / "bin/mpirun")),
}
THREADS = 4  # an mpirun waits most of the time


def mpirun_of(major: int, path: str) -> ChosenManager:
    manager = parse_program(f"(Open MPI) {major}.0", path, "test")
    return ChosenManager(path, manager.rankfile_dialect or 0, manager.counts_by_hwloc_2_0())


def judge_shape(shape: Shape, mpirun: ChosenManager, seed: int) -> list[Judgement]:
    """Judge ddlrun on a random machine by one mpirun."""
    with tempfile.TemporaryDirectory(prefix="ddlm") as folder:
        root = write_tree(shape, Path(folder))
        return [*judge_tree(root, mpirun, seed), *judge_gpus(root, mpirun, facts_of(shape))]


def reproduce(shape: Shape, judgement: Judgement) -> str:
    """Return the smallest machine found on which a comparison has the same outcome, and the comparison there."""

    def again(other: Shape) -> Judgement | None:
        with tempfile.TemporaryDirectory(prefix="ddlm") as folder:
            root = write_tree(other, Path(folder))
            if judgement.result is Result.GPU_ELSEWHERE:
                return next(judge_gpus(root, judgement.mpirun, facts_of(other)), None)
            return judge_again(root, judgement)

    def same(other: Shape) -> bool:
        repeated = again(other)
        return repeated is not None and repeated.result is judgement.result

    if not same(shape):
        return f"only once: {options(shape)}\n{describe(shape, 'random')}{judgement.subject}\n{judgement.detail}"
    small = reduce_shape(shape, same)
    detail = (again(small) or judgement).detail
    return f"options: {options(small)}\n{describe(small, 'random')}{judgement.subject}\n{detail}"


def _judge_seed(seed: int, mpiruns: list[ChosenManager]) -> list[Judgement]:
    return [judgement for mpirun in mpiruns for judgement in judge_shape(random_shape(seed), mpirun, seed)]


def main(machines: int, first: int = 0) -> None:
    """Print the outcomes on `machines` machines."""
    mpiruns = [mpirun_of(major, path) for major, path in PATHS.items()]
    counts: Counter[str] = Counter()
    examples: dict[str, tuple[int, Judgement]] = {}
    seeds = range(first, first + machines)
    with ThreadPoolExecutor(THREADS) as pool:
        for seed, judgements in zip(seeds, pool.map(lambda seed: _judge_seed(seed, mpiruns), seeds), strict=True):
            for judgement in judgements:
                kind = _kind(judgement)
                counts[kind] += 1
                if not judgement.agrees:
                    examples.setdefault(kind, (seed, judgement))
    for kind, number in counts.most_common():
        print(f"{number:7} {kind}")
    for kind, (seed, judgement) in examples.items():
        print(f"\n{kind}, machine {seed}\n{reproduce(random_shape(seed), judgement)}")


def _kind(judgement: Judgement) -> str:
    words = {"rank": "line", "gpu": "GPU", "": "machine"}
    subject = words[judgement.subject.partition(" ")[0]] if isinstance(judgement.subject, str) else "plan"
    reason = f": {judgement.detail}" if judgement.result is Result.REFUSED else ""
    return f"{subject}, Open MPI {judgement.mpirun.major}: {judgement.result.value}{reason}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
