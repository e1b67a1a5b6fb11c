"""Search for the settings with which all ranks average a step's gradients fastest."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.measure.messages import Progress
from ddlrun.measure.timing import is_stable
from ddlrun.network.candidates import SETTINGS, Candidate, TuningSpace
from ddlrun.network.measurements import CandidateRecord, SearchResult

if TYPE_CHECKING:
    from ddlrun.ddl.group.handle import Handle
    from ddlrun.ddl.learner import Learner


# A candidate whose best time exceeds that of the fastest by this factor is not measured again.
HOPELESS = 1.25
RUNS = 3
# The number of fastest candidates from which the search continues, and which reach the final.
WIDTH = 3
FINAL_RUNS = 15
# The search starts no measurement after this share of the budget; the rest is for the final.
SEARCH = 0.75
# The default settings stay unless another candidate takes less than this share of their time.
BETTER = 0.98
# The number of times during a backward pass at which the messages under way are advanced.
MOMENTS = 64


class StepBenchmark:
    """The gradients of a training step: each bucket starts when it is ready, then all are waited for."""

    def __init__(self, comm: MPI.Intracomm, gradient: int, lead: float, environ: Mapping[str, str]) -> None:
        self._comm, self._lead, self._environ = comm, lead, environ
        self._row = np.zeros(max(gradient // 4, 1), "f4")
        self._learners: dict[Candidate, Learner] = {}

    def __call__(self, candidate: Candidate) -> float:
        """Return the slowest rank's seconds from the end of the backward pass, or from the start without one."""
        if candidate not in self._learners:
            topologies = {other.topology for other in self._learners}
            options = f"-mode {candidate.mode}:{candidate.topology}"
            self._learners[candidate] = start_learner(options, None, candidate.tuning, self._environ)
            if candidate.topology not in topologies or not candidate.chunk:  # connections open, mode p explores
                self._run_once(candidate)
        self._row[:] = self._comm.rank
        self._comm.Barrier()
        seconds = float(self._comm.allreduce(self._run_once(candidate) - self._lead, MPI.MAX))
        if not self._comm.allreduce(bool(np.allclose(self._row, (self._comm.size - 1) / 2)), MPI.LAND):
            raise RuntimeError(f"{candidate}: averages are wrong")
        return seconds

    def forget(self, candidate: Candidate) -> None:
        """Free the communicators of a candidate; all ranks call it together."""
        self._learners.pop(candidate).free()

    def free(self) -> None:
        """Free all communicators."""
        while self._learners:
            self._learners.popitem()[1].free()

    def _run_once(self, candidate: Candidate) -> float:
        learner, length = self._learners[candidate], max(min(candidate.bucket, self._row.nbytes) // 4, 1)
        buckets = [self._row[at : at + length] for at in range(0, len(self._row), length)]
        handles: list[Handle] = []
        start = now = time.perf_counter()
        for number, bucket in enumerate(buckets, 1):
            ready = start + self._lead * number / len(buckets)
            while now < ready:
                for handle in handles:
                    handle.test()
                time.sleep(min(self._lead / MOMENTS, ready - now))
                now = time.perf_counter()
            handles.append(learner.start([bucket], "avg", axes="", wire=None))
        for handle in handles:
            handle.wait()
        return time.perf_counter() - start


class CandidateTimer(Protocol):
    """The function to minimise."""

    def __call__(self, candidate: Candidate) -> float:
        """Return seconds, the same on all ranks."""

    def forget(self, candidate: Candidate) -> None:
        """Free a candidate that will not be measured again."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """All measurements (seconds, in their order), the best candidate, and whether the time was enough."""

    samples: dict[Candidate, list[float]]
    best: Candidate
    complete: bool


class TuningSearch:
    """Search for the best candidate; all ranks decide alike, by rank 0's clock and the slowest rank's seconds."""

    def __init__(self, comm: MPI.Intracomm, measure: CandidateTimer, budget: float, progress: Progress) -> None:
        self._comm, self._measure, self._progress = comm, measure, progress
        self._start, self._budget = self._now(), budget
        self._samples: dict[Candidate, list[float]] = {}
        self._complete = True

    def run(self, default: Candidate, space: TuningSpace) -> TuningResult:
        """Measure the candidates that plan expects most of; then vary one setting of the fastest after another."""
        best = self._race(default, [default, *space.first()], space)
        for setting in SETTINGS:
            near = (neighbour for candidate in best for neighbour in space.near(candidate, setting))
            best = self._race(default, [*best, *near], space)
        return self._final(default)

    def run_all(self, default: Candidate, space: TuningSpace) -> TuningResult:
        """Measure all candidates, without a time limit."""
        self._budget = float("inf")
        self._race(default, [default, *space.all_candidates()], space)
        return self._final(default)

    def _final(self, default: Candidate) -> TuningResult:
        """Measure the fastest candidates and the default in turn until their medians are stable; return the winner."""
        finalists = list(dict.fromkeys([*self._fastest(), default]))
        while not all(is_stable(self._samples[candidate]) for candidate in finalists):
            if len(self._samples[finalists[0]]) >= FINAL_RUNS or not self._left(1.0, sum(map(self._time, finalists))):
                break
            for candidate in finalists:
                self._try(candidate)
        best = min(finalists, key=self._time)
        if self._time(best) >= BETTER * self._time(default):
            best = default
        return TuningResult(self._samples, best, self._complete)

    def _race(self, default: Candidate, candidates: Sequence[Candidate], space: TuningSpace) -> list[Candidate]:
        """Measure each candidate once, the hopeful ones and the default again; return the fastest so far."""
        for run in range(RUNS):
            for candidate in self._due(run, default, candidates):
                samples = self._samples.get(candidate, [])
                expected = self._time(candidate) if samples else space.predict(candidate)
                if self._samples and not self._left(SEARCH, expected):
                    self._complete = False
                    continue
                self._try(candidate)
                if candidate != default and not self._is_hopeful(candidate):
                    self._measure.forget(candidate)
        return self._fastest()

    def _due(self, run: int, default: Candidate, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield the candidates without a sample for a run: all in the first, the hopeful and the default later."""
        for candidate in dict.fromkeys(candidates):
            samples = self._samples.get(candidate, [])
            if len(samples) > run:
                continue
            if run == 0 or candidate == default or (samples and self._is_hopeful(candidate)):
                yield candidate

    def _is_hopeful(self, candidate: Candidate) -> bool:
        return min(self._samples[candidate]) <= HOPELESS * min(map(min, self._samples.values()))

    def _fastest(self) -> list[Candidate]:
        hopeful = [candidate for candidate in self._samples if self._is_hopeful(candidate)]
        return sorted(hopeful, key=self._time)[:WIDTH]

    def _try(self, candidate: Candidate) -> None:
        spent = min((self._now() - self._start) / self._budget, 1.0)
        self._progress(f"{candidate.topology} mode {candidate.mode} {candidate.tuning}", spent)
        self._samples.setdefault(candidate, []).append(self._measure(candidate))

    def _time(self, candidate: Candidate) -> float:
        return float(np.median(self._samples[candidate]))

    def _left(self, share: float, seconds: float) -> bool:
        """Return True if `seconds` from now are within this share of the budget."""
        return self._now() - self._start + seconds < share * self._budget

    def _now(self) -> float:
        return float(self._comm.bcast(time.perf_counter()))


def result_dict(result: TuningResult, space: TuningSpace) -> SearchResult:
    """Return a result as JSON, the fastest candidate first."""
    rows: list[CandidateRecord] = [
        {
            "topology": str(candidate.topology), "mode": candidate.mode, "tuning": candidate.tuning,
            "seconds": float(np.median(seconds)), "runs": len(seconds), "expected": space.predict(candidate),
        }
        for candidate, seconds in result.samples.items()
    ]  # fmt: skip
    best = result.best
    return {
        "measured": sorted(rows, key=lambda row: row["seconds"]),
        "best": {"topology": str(best.topology), "mode": best.mode, "tuning": best.tuning,
                 "seconds": float(np.median(result.samples[best]))},
        "complete": result.complete,
    }  # fmt: skip
