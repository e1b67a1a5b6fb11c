"""What `ddlrun tune` tries: decompositions, modes of DDL, sizes of chunks and buckets; what plan expects of each."""

from collections.abc import Iterator
from typing import NamedTuple

from ddlrun.allreduce_algorithms import CHUNKS, DEPTHS, KIB, MIB, AllreduceAlgorithm, Tuning, dimension_algorithm
from ddlrun.network.cost import CostModel, axes_of
from ddlrun.network.fabric import Fabric
from ddlrun.network.forecast import decompositions
from ddlrun.topology import Topology

# b is r, but for small arrays, which it leaves to MPI, and GPUs, where it takes NCCL, as n does.
MODES = "pbcm"
ALL_DEPTHS = (8, *DEPTHS)
BUCKETS = tuple(mib * MIB for mib in (4, 1, 16, 64))
# Decompositions and modes that plan expects to take this many times the best one's time are not measured.
FAR = 1.5
MOST = 12
KNOBS = ("chunk", "depth", "bucket")


class Candidate(NamedTuple):
    """A way to average a step's gradients; `chunk` 0: as mode p finds by itself. Sizes in bytes."""

    topology: Topology
    mode: str = "p"
    chunk: int = 0
    depth: int = 0
    bucket: int = BUCKETS[0]

    @property
    def tuning(self) -> str:
        """Write DDLRUN_DDL_TUNING.

        >>> Candidate(Topology((2, 2)), "r", 98304, 8).tuning
        'chunk=96K,depth=8,bucket=4M'
        """
        sizes = f"chunk={self.chunk // KIB}K,depth={self.depth}," if self.chunk else ""
        return f"{sizes}bucket={self.bucket // MIB}M"


class TuningSpace(NamedTuple):
    """The job: its topology, its wiring (learners a host, hosts a rack, racks), the links, bytes of gradients."""

    topology: Topology
    wiring: Topology
    fabric: Fabric
    gradient: int

    def expected(self, one: Candidate) -> float:
        """Return the seconds that the model of network.cost expects."""
        model = CostModel(axes_of(one.topology), self.wiring, self.fabric)
        bucket = min(one.bucket, self.gradient)
        if one.mode == "m":
            return self.gradient / bucket * model.cost(AllreduceAlgorithm("native"), bucket).seconds
        if not one.chunk:
            return model.best(one.mode, self.gradient, blocking=False).seconds
        algorithms = tuple(dimension_algorithm(one.mode, size) for size in one.topology.dims)
        return model.cost(
            AllreduceAlgorithm("chunks", algorithms, min(one.chunk, bucket), one.depth), self.gradient
        ).seconds

    def shapes(self) -> list[Topology]:
        """Return the decompositions that differ: 2x4x1 and 2x1x4 are one, and the job's own stands for its like."""
        found = {_longer_than_one(self.topology): self.topology}
        for one in decompositions(self.topology):
            found.setdefault(_longer_than_one(one), one)
        return list(found.values())

    def everything(self) -> list[Candidate]:
        """Return each candidate that differs from the others in what it does."""
        return [
            Candidate(shape, mode, chunk, depth, bucket)
            for shape in self.shapes()
            for mode in _modes(shape)
            for bucket in self._values("bucket")
            for chunk in (self._values("chunk") if mode != "m" else (0,))
            for depth in (self._values("depth") if mode != "m" else (0,))
            if chunk <= bucket
        ]

    def first(self) -> list[Candidate]:
        """Return the best few decompositions and modes, each with the chunks that plan expects most of, best first."""
        groups: dict[tuple[Topology, str], list[Candidate]] = {}
        for one in self.everything():
            if one.bucket == self._values("bucket")[0]:
                groups.setdefault((one.topology, one.mode), []).append(one)
        best = sorted((min(group, key=self.expected) for group in groups.values()), key=self.expected)
        return [one for one in best if self.expected(one) <= FAR * self.expected(best[0])][:MOST]

    def near(self, one: Candidate, knob: str) -> Iterator[Candidate]:
        """Yield what differs in one of KNOBS alone."""
        if one.chunk or knob == "bucket":
            values = one._asdict()
            yield from (Candidate(**values | {knob: size}) for size in self._values(knob) if size != values[knob])

    def _values(self, knob: str) -> tuple[int, ...]:
        if knob == "depth":
            return ALL_DEPTHS
        values = BUCKETS if knob == "bucket" else tuple(CHUNKS)
        whole = next((value for value in sorted(values) if value >= self.gradient), max(values))
        return tuple(value for value in values if value <= whole)


def usual(topology: Topology, tuning: Tuning) -> Candidate:
    """Return what launch does without a profile: mode p, which explores for itself."""
    return Candidate(topology, bucket=tuning.bucket)


def _longer_than_one(shape: Topology) -> tuple[int, ...]:
    return tuple(size for size in shape.dims if size > 1)


def _modes(shape: Topology) -> list[str]:
    """Return modes whose algorithms differ: two learners exchange halves, whatever it is called."""
    found: dict[tuple[str, ...], str] = {}
    for mode in MODES:
        name = ("native",) if mode == "m" else tuple(dimension_algorithm(mode, size) for size in shape.dims if size > 2)
        found.setdefault(name, mode)
    return list(found.values())
