"""Mode p: measure the ways of reducing a size, take the best one, remember it for the next job."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlrun.allreduce_algorithms import AlgorithmSpace, AllreduceAlgorithm, first_ways, near_ways
from ddlrun.ddl.schedule import REDUCES
from ddlrun.ddl.wire_compression import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Measure = Callable[[AllreduceAlgorithm], float]

# Sizes between two powers of 2 share what was found for the upper one.
SMALLEST, LARGEST = 8 * 1024, 64 * 1024 * 1024
# A search begins no further reduction after so many seconds; those of slow links take some each.
PATIENCE = 10.0
# Ways slower than this times the best at first sight are not measured again.
HOPELESS = 1.25
# What was usual stays unless something is better by more than the noise of a few runs.
BETTER = 0.98
RUNS = 3
# Whoever else runs on the machine makes a reduction of so many seconds and less look far longer. So these are done more
# often, in turn, as a script does: one right after its like finds memory that others do not. They count a third.
SHORT, SHORT_RUNS, THIRDS = 10e-3, 5, 3


class AutotuneResult(NamedTuple):
    """The best way, how many reductions that took, and how long in seconds."""

    way: AllreduceAlgorithm
    runs: int
    seconds: float


def size_class(size: int) -> int:
    """Return the least power of 2 that is not less, between 8 KiB and 64 MiB.

    >>> size_class(3 * 2**20) == 4 * 2**20
    True
    """
    return min(max(1 << max(size - 1, 0).bit_length(), SMALLEST), LARGEST)


def search(space: AlgorithmSpace, measure: Measure, most: int) -> AutotuneResult:
    """Find the best way to reduce so many bytes by at most `most` calls of `measure`, which returns seconds.

    Short ones count a third. All learners must get the same seconds: they decide by them alone.
    """
    race = _Race(measure, most)
    race.try_once(space.usual)  # connections, first pages
    race.seen.clear()
    best = race.best(space.usual, first_ways(space))
    best = race.best(best, near_ways(best, space))
    return AutotuneResult(best, race.runs, race.seconds)


class _Race:
    def __init__(self, measure: Measure, most: int) -> None:
        self._measure, self._left = measure, THIRDS * most
        self.runs, self.seconds = 0, 0.0
        self.seen: dict[AllreduceAlgorithm, list[float]] = {}

    def try_once(self, way: AllreduceAlgorithm) -> None:
        if self._left >= THIRDS and self.seconds < PATIENCE:
            took = self._measure(way)
            self.seen.setdefault(way, []).append(took)
            self.runs, self.seconds = self.runs + 1, self.seconds + took
            self._left -= 1 if took <= SHORT else THIRDS

    def best(self, held: AllreduceAlgorithm, others: Iterable[AllreduceAlgorithm]) -> AllreduceAlgorithm:
        ways = list(dict.fromkeys([held, *others]))
        for number in range(SHORT_RUNS):
            for way in self._worth(ways, number):
                if len(self.seen.get(way, ())) <= number:
                    self.try_once(way)
        hopeful = self._hopeful(ways)
        winner = min(hopeful, key=self._time, default=held)
        return winner if held not in hopeful or self._time(winner) < BETTER * self._time(held) else held

    def _worth(self, ways: list[AllreduceAlgorithm], number: int) -> list[AllreduceAlgorithm]:
        """Return what to measure for the time `number`, from 0: all at first, the short ones twice."""
        short = self._least(ways) <= SHORT
        if number >= (SHORT_RUNS if short else RUNS):
            return []
        return ways if number < 1 + short else self._hopeful(ways)

    def _least(self, ways: Iterable[AllreduceAlgorithm]) -> float:
        return min((min(self.seen[way]) for way in ways if self.seen.get(way)), default=0.0)

    def _hopeful(self, ways: Sequence[AllreduceAlgorithm]) -> list[AllreduceAlgorithm]:
        least = self._least(ways)
        return [way for way in ways if self.seen.get(way) and min(self.seen[way]) <= HOPELESS * least]

    def _time(self, way: AllreduceAlgorithm) -> float:
        return statistics.median(self.seen[way])


class AutotuneCache:
    """What was found for these hosts, this shape and this MPI, in a file of rank 0's user; all ranks hold a copy."""

    def __init__(self, path: str | None, key: Mapping[str, Any], text: str) -> None:
        self.path, self._key = path, key
        self._ways = _parse(text, key)

    def get(self, case: str) -> AllreduceAlgorithm | None:
        """Return the way that was found for a case."""
        return self._ways.get(case)

    def keep(self, case: str, way: AllreduceAlgorithm, *, write: bool) -> bool:
        """Remember a way; one rank writes, and says whether it could. Else the next job finds it again."""
        self._ways[case] = way
        if not write or self.path is None:
            return False
        found = _parse(read(self.path), self._key) | self._ways  # another job may have written since
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            part = f"{self.path}.{os.getpid()}"
            with open(part, "w", encoding="utf-8") as file:
                json.dump({**self._key, "ways": found}, file, indent=1)
            os.replace(part, self.path)
            return True
        return False


def memory_path(environ: Mapping[str, str], key: Mapping[str, Any]) -> str | None:
    """Return the file for a key in the user's state folder; None where the user has no home."""
    home = environ.get("HOME")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return f"{state}/ddlrun/explored/{digest}.json" if state else None


def read(path: str | None) -> str:
    """Return a file's text; nothing where it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        if path is not None:
            with open(path, encoding="utf-8") as file:
                return file.read()
    return ""


def _parse(text: str, key: Mapping[str, Any]) -> dict[str, AllreduceAlgorithm]:
    """Return case -> way; nothing from a file that is cut short, of other hosts, or not ours."""
    try:
        found = json.loads(text) if text else {}
        if {name: found[name] for name in key if found} != (dict(key) if found else {}):
            return {}
        axes = str(key["topology"]).count("x") + 1
        return {case: _way(axes, *values) for case, values in found.get("ways", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        if text:
            sys.stderr.write("ddlrun.ddl: what was explored before cannot be read; exploring anew\n")
        return {}


def _way(axes: int, how: str, algorithms: Sequence[str], chunk: int, depth: int, wire: str = "") -> AllreduceAlgorithm:
    sane = how in {"flat", "native"} or (
        how == "chunks" and min(int(chunk), int(depth)) > 0 and len(algorithms) == axes
    )
    sane &= wire.partition(":")[0] in {*FORMATS, ""}
    if not sane or not REDUCES.keys() >= set(algorithms):
        raise ValueError(how)
    return AllreduceAlgorithm(how, tuple(algorithms), int(chunk), int(depth), wire)
