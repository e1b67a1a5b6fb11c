"""A step's gradients averaged in many ways on all ranks, and the search for the way that takes least."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.measure.timing import stable
from ddlrun.network.candidates import KNOBS, Candidate, TuningSpace

if TYPE_CHECKING:
    from ddlrun.ddl.handle import Handle
    from ddlrun.ddl.learner import Learner


# Candidates that took this many times the best one's time at first sight are not measured again.
HOPELESS = 1.25
RUNS = 3
# So many of the best go on from knob to knob, and into the final.
WIDTH = 3
FINAL_RUNS = 15
# Shares of the time after which the search, and the final, begin nothing more.
SEARCH = 0.75
# What is usual stays unless something is better by more than noise.
BETTER = 0.98
# Gradients become ready at so many moments of a backward pass.
MOMENTS = 64


class StepBenchmark:
    """What a training step does with its gradients: each bucket starts when it is ready, then all are waited for."""

    def __init__(self, comm: MPI.Intracomm, gradient: int, lead: float, environ: Mapping[str, str]) -> None:
        self._comm, self._lead, self._environ = comm, lead, environ
        self._row = np.zeros(max(gradient // 4, 1), "f4")
        self._learners: dict[Candidate, Learner] = {}

    def __call__(self, one: Candidate) -> float:
        """Return the seconds of the slowest rank from the end of the backward pass, or the start where it has none."""
        if one not in self._learners:
            known = {other.topology for other in self._learners}
            self._learners[one] = start_learner(f"-mode {one.mode}:{one.topology}", None, one.tuning, self._environ)
            if one.topology not in known or not one.chunk:  # connections open, mode p explores
                self._once(one)
        self._row[:] = self._comm.rank
        self._comm.Barrier()
        took = float(self._comm.allreduce(self._once(one) - self._lead, MPI.MAX))
        if not self._comm.allreduce(bool(np.allclose(self._row, (self._comm.size - 1) / 2)), MPI.LAND):
            raise RuntimeError(f"{one}: averages are wrong")
        return took

    def forget(self, one: Candidate) -> None:
        """Free what a candidate has taken; all ranks together."""
        self._learners.pop(one).free()

    def free(self) -> None:
        """Free all communicators."""
        while self._learners:
            self._learners.popitem()[1].free()

    def _once(self, one: Candidate) -> float:
        learner, length = self._learners[one], max(min(one.bucket, self._row.nbytes) // 4, 1)
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
    """What is searched for the least of."""

    def __call__(self, one: Candidate) -> float:
        """Return seconds, the same on all ranks."""

    def forget(self, one: Candidate) -> None:
        """Take note that it will not be asked for again."""


class TuningResult(NamedTuple):
    """All that was measured (seconds, in their order), the best one, and whether the time was enough."""

    seen: dict[Candidate, list[float]]
    best: Candidate
    complete: bool


class TuningSearch:
    """Looks for the best candidate; all ranks decide alike, by rank 0's clock and the slowest rank's seconds."""

    def __init__(
        self, comm: MPI.Intracomm, measure: CandidateTimer, budget: float, say: Callable[[str, float], None]
    ) -> None:
        self._comm, self._measure, self._say = comm, measure, say
        self._start, self._budget = self._now(), budget
        self._seen: dict[Candidate, list[float]] = {}
        self._complete = True

    def run(self, usual: Candidate, space: TuningSpace) -> TuningResult:
        """Measure the best few of plan, then from knob to knob what differs in it from the best of those."""
        best = self._race(usual, [usual, *space.first()], space)
        for knob in KNOBS:
            best = self._race(usual, [*best, *(near for one in best for near in space.near(one, knob))], space)
        return self._final(usual)

    def run_all(self, usual: Candidate, space: TuningSpace) -> TuningResult:
        """Measure everything, whatever the time."""
        self._budget = float("inf")
        self._race(usual, [usual, *space.everything()], space)
        return self._final(usual)

    def _final(self, usual: Candidate) -> TuningResult:
        few = list(dict.fromkeys([*self._fastest(), usual]))
        while not all(stable(self._seen[one]) for one in few) and len(self._seen[few[0]]) < FINAL_RUNS:
            if not self._left(1.0, sum(map(self._time, few))):
                break
            for one in few:
                self._try(one)
        best = min(few, key=self._time)
        kept = self._time(best) >= BETTER * self._time(usual)
        return TuningResult(self._seen, usual if kept else best, self._complete)

    def _race(self, usual: Candidate, candidates: Sequence[Candidate], space: TuningSpace) -> list[Candidate]:
        """Measure each, the hopeful ones and the usual one again; return the fastest few of all so far."""
        for number in range(RUNS):
            for one in dict.fromkeys(candidates):
                seen = self._seen.get(one, [])
                if len(seen) > number or (number and one != usual and (not seen or not self._hopeful(one))):
                    continue
                if self._seen and not self._left(SEARCH, self._time(one) if seen else space.expected(one)):
                    self._complete = False
                    continue
                self._try(one)
                if one != usual and not self._hopeful(one):
                    self._measure.forget(one)
        return self._fastest()

    def _hopeful(self, one: Candidate) -> bool:
        return min(self._seen[one]) <= HOPELESS * min(map(min, self._seen.values()))

    def _fastest(self) -> list[Candidate]:
        hopeful = [one for one in self._seen if self._hopeful(one)]
        return sorted(hopeful, key=self._time)[:WIDTH]

    def _try(self, one: Candidate) -> None:
        spent = min((self._now() - self._start) / self._budget, 1.0)
        self._say(f"{one.topology} mode {one.mode} {one.tuning}", spent)
        self._seen.setdefault(one, []).append(self._measure(one))

    def _time(self, one: Candidate) -> float:
        return float(np.median(self._seen[one]))

    def _left(self, share: float, seconds: float) -> bool:
        """Tell whether so many seconds more end before this share of the budget does."""
        return self._now() - self._start + seconds < share * self._budget

    def _now(self) -> float:
        return float(self._comm.bcast(time.perf_counter()))


def found_dict(found: TuningResult, space: TuningSpace) -> dict[str, Any]:
    """Return what was found as JSON can carry it."""
    rows = [
        {
            "topology": str(one.topology), "mode": one.mode, "tuning": one.tuning,
            "seconds": float(np.median(seconds)), "runs": len(seconds), "expected": space.expected(one),
        }
        for one, seconds in found.seen.items()
    ]  # fmt: skip
    best = found.best
    return {
        "measured": sorted(rows, key=lambda row: float(str(row["seconds"]))),
        "best": {"topology": str(best.topology), "mode": best.mode, "tuning": best.tuning,
                 "seconds": float(np.median(found.seen[best]))},
        "complete": found.complete,
    }  # fmt: skip
