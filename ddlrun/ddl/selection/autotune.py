"""Mode p: measure the algorithms for a size, use the fastest, and keep it for the next job.

Monitors compare two algorithms by trial reductions, too, during a job.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ddlrun.allreduce_algorithms import (
    MOST_CONNECTIONS,
    WEIGHTED,
    AlgorithmSpace,
    AllreduceAlgorithm,
    first_candidates,
    neighbours,
)
from ddlrun.ddl.schedules.schedule import REDUCE_SCATTERS
from ddlrun.ddl.selection.wire_compression import WIRES
from ddlrun.topology import parse_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ddlrun.allreduce_algorithms import MessageClass

    Measure = Callable[[AllreduceAlgorithm], float]

# Bytes. Sizes between two powers of 2 use the result for the upper one.
SMALLEST, LARGEST = 8 * 1024, 64 * 1024 * 1024
# Seconds after which a search begins no further reduction. On slow links each may take seconds.
PATIENCE = 10.0
# Algorithms slower than this multiple of the fastest in their first runs are not measured again.
HOPELESS = 1.25
# The default is replaced only by an algorithm that takes at most this share of its time: more than the noise of a few
# runs.
BETTER = 0.98
RUNS = 3
# Other processes on the machine make a reduction of up to SHORT seconds look far longer than it is. So short reductions
# are run SHORT_RUNS times, all algorithms in turn, as in a script: a reduction right after one of its kind finds its
# memory in the cache. In the budget they count one third, others THIRDS thirds.
SHORT, SHORT_RUNS, THIRDS = 10e-3, 5, 3


@dataclass(frozen=True, slots=True)
class AutotuneResult:
    """The fastest algorithm, and the number of reductions and the seconds that the search took."""

    algorithm: AllreduceAlgorithm
    runs: int
    seconds: float


def size_class(size: int) -> int:
    """Return the least power of 2 that is at least `size` bytes, between 8 KiB and 64 MiB.

    >>> size_class(3 * 2**20) == 4 * 2**20
    True
    """
    return min(max(1 << max(size - 1, 0).bit_length(), SMALLEST), LARGEST)


def search(space: AlgorithmSpace, measure: Measure, budget: int) -> AutotuneResult:
    """Find the fastest algorithm.

    Args:
        space: The algorithms.
        measure: Runs one reduction and returns its seconds. All learners must get the same number, because they decide
            by it alone.
        budget: Reductions that may be run. One of 10 ms or less counts a third.
    """
    comparison = _Comparison(measure, budget)
    comparison.run(space.default)  # opens connections and touches memory for the first time
    comparison.times.clear()
    best = comparison.find_best(space.default, first_candidates(space))
    best = comparison.find_best(best, neighbours(best, space))
    return AutotuneResult(best, comparison.runs, comparison.seconds)


class _Comparison:
    """Measured times of algorithms, within a budget."""

    def __init__(self, measure: Measure, budget: int) -> None:
        self._measure, self._thirds_left = measure, THIRDS * budget
        self.runs, self.seconds = 0, 0.0
        self.times: dict[AllreduceAlgorithm, list[float]] = {}

    def run(self, algorithm: AllreduceAlgorithm) -> None:
        """Measure an algorithm once, if the budget allows."""
        if self._thirds_left >= THIRDS and self.seconds < PATIENCE:
            seconds = self._measure(algorithm)
            self.times.setdefault(algorithm, []).append(seconds)
            self.runs, self.seconds = self.runs + 1, self.seconds + seconds
            self._thirds_left -= 1 if seconds <= SHORT else THIRDS

    def find_best(self, current: AllreduceAlgorithm, others: Iterable[AllreduceAlgorithm]) -> AllreduceAlgorithm:
        """Return the fastest algorithm, or the current one unless another is better by more than noise."""
        algorithms = list(dict.fromkeys([current, *others]))
        for run_number in range(SHORT_RUNS):
            for algorithm in self._worth_measuring(algorithms, run_number):
                if len(self.times.get(algorithm, ())) <= run_number:
                    self.run(algorithm)
        promising = self._promising(algorithms)
        fastest = min(promising, key=self._median, default=current)
        keeps_current = current in promising and self._median(fastest) >= BETTER * self._median(current)
        return current if keeps_current else fastest

    def _worth_measuring(self, algorithms: list[AllreduceAlgorithm], run_number: int) -> list[AllreduceAlgorithm]:
        """Return the algorithms for run `run_number`, from 0: all in the first run, or two if they are short."""
        short = self._least(algorithms) <= SHORT
        if run_number >= (SHORT_RUNS if short else RUNS):
            return []
        return algorithms if run_number < (2 if short else 1) else self._promising(algorithms)

    def _least(self, algorithms: Iterable[AllreduceAlgorithm]) -> float:
        return min((min(self.times[item]) for item in algorithms if self.times.get(item)), default=0.0)

    def _promising(self, algorithms: Sequence[AllreduceAlgorithm]) -> list[AllreduceAlgorithm]:
        limit = HOPELESS * self._least(algorithms)
        return [item for item in algorithms if self.times.get(item) and min(self.times[item]) <= limit]

    def _median(self, algorithm: AllreduceAlgorithm) -> float:
        return statistics.median(self.times[algorithm])


class AutotuneCache:
    """The results for a set of hosts, a shape and an MPI, in a file of rank 0's user. All ranks hold a copy."""

    def __init__(self, path: str | None, key: Mapping[str, Any], text: str) -> None:
        self.path, self._key = path, key
        self._algorithms = _parse(text, key)

    def get(self, name: str) -> AllreduceAlgorithm | None:
        """Return the algorithm for a message class, if there is one."""
        return self._algorithms.get(name)

    def put(self, name: str, algorithm: AllreduceAlgorithm, *, write: bool) -> bool:
        """Add the algorithm for a message class; return whether it was written to the file.

        One rank writes. If it cannot, the next job searches again.
        """
        self._algorithms[name] = algorithm
        if not write or self.path is None:
            return False
        merged = _parse(read_file(self.path), self._key) | self._algorithms  # another job may have written since
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            partial_path = f"{self.path}.{os.getpid()}"
            with open(partial_path, "w", encoding="utf-8") as file:
                json.dump({**self._key, "algorithms": merged}, file, indent=1)
            os.replace(partial_path, self.path)
            return True
        return False


def cache_path(environ: Mapping[str, str], key: Mapping[str, Any]) -> str | None:
    """Return the file for a key in the user's state folder, or None if the user has no home."""
    home = environ.get("HOME")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return f"{state}/ddlrun/explored/{digest}.json" if state else None


def read_file(path: str | None) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        if path is not None:
            with open(path, encoding="utf-8") as file:
                return file.read()
    return ""


def _parse(text: str, key: Mapping[str, Any]) -> dict[str, AllreduceAlgorithm]:
    """Return the algorithm of each message class; none if the file is damaged, or has another key."""
    if not text:
        return {}
    try:
        content = json.loads(text)
        if {name: content[name] for name in key} != dict(key):
            return {}
        axes = len(parse_topology(str(key["topology"])).dims)
        return {name: _parse_algorithm(values, axes) for name, values in content.get("algorithms", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        sys.stderr.write("ddlrun.ddl: what was explored before cannot be read; exploring anew\n")
        return {}


def _parse_algorithm(values: Sequence[Any], axes: int) -> AllreduceAlgorithm:
    """Return an algorithm from the values of its fields. Raises ValueError if they make none for `axes` dimensions."""
    read = AllreduceAlgorithm(*values)
    numbers = {"chunk": int(read.chunk), "depth": int(read.depth), "connections": int(read.connections)}
    known = len(read.algorithms) == axes and REDUCE_SCATTERS.keys() >= set(read.algorithms)  # one per dimension
    known = known or tuple(read.algorithms) == WEIGHTED
    valid = read.method in {"flat", "native"} or (read.method == "chunks" and min(numbers.values()) > 0 and known)
    valid = valid and numbers["connections"] <= MOST_CONNECTIONS
    valid = valid and read.wire.partition(":")[0] in {*WIRES, ""}
    if not valid:
        raise ValueError(read.method)
    return AllreduceAlgorithm(method=read.method, algorithms=tuple(read.algorithms), wire=read.wire, **numbers)


# Bytes of the smallest reduction that a monitor may change: below, the number of messages matters more.
LEAST_BYTES = 1 << 20
# Trial reductions of each algorithm, after one that opens connections, and the bytes of the largest one.
TURNS, LARGEST_TRIAL = 5, 8 << 20
# The share of the time that the other algorithm must save at least.
GAIN = 0.1


class Monitor(Protocol):
    """A change of algorithms by what is measured during a job. All ranks make the same calls."""

    def is_due(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> bool:
        """Count a reduction; return True if a measurement is to be made before it."""

    def update(self, is_adapted_faster: Callable[[float], bool]) -> None:
        """Measure, and choose what is faster. Nothing is in progress.

        `is_adapted_faster` is called with the seconds by which this rank begins late; it compares the usual algorithm
        with that of `adapt`, with the same result on all ranks.
        """

    def adapt(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> AllreduceAlgorithm:
        """Return the algorithm, or the one that takes its place."""


def is_clearly_faster(other: Sequence[float], usual: Sequence[float]) -> bool:
    """Return True if the other algorithm was faster than the usual one in each turn, and by GAIN in the median.

    >>> is_clearly_faster([2.0, 2.1, 2.0], usual=[3.0, 3.1, 2.9]), is_clearly_faster([2.0, 2.1, 2.0], [2.1, 2.2, 2.1])
    (True, False)
    """
    wins = all(seconds < usually for seconds, usually in zip(other, usual, strict=True))
    return wins and statistics.median(other) <= (1 - GAIN) * statistics.median(usual)


def is_faster(other: AllreduceAlgorithm, usual: AllreduceAlgorithm, measure: Measure) -> bool:
    """Run reductions by both algorithms in turn; return True if the other one is faster."""
    times: dict[AllreduceAlgorithm, list[float]] = {usual: [], other: []}
    for _ in range(1 + TURNS):
        for algorithm, seconds in times.items():
            seconds.append(measure(algorithm))
    return is_clearly_faster(times[other][1:], times[usual][1:])
