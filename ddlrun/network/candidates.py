"""Candidates of `ddlrun network tune`: topologies, modes, sizes of chunks and buckets, and the predicted time."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ddlrun.allreduce_algorithms import CHUNKS, DEPTHS, KIB, MIB, AllreduceAlgorithm, Tuning, dimension_algorithm
from ddlrun.network.cost import CostModel
from ddlrun.network.fabric import Fabric
from ddlrun.network.forecast import decompositions
from ddlrun.network.message_counts import axes_of
from ddlrun.topology import Topology

# Mode b is r, except for small arrays, which it leaves to MPI, and on GPUs, where it uses NCCL, as n does.
MODES = "pbcm"
ALL_DEPTHS = (8, *DEPTHS)
BUCKETS = tuple(mib * MIB for mib in (4, 1, 16, 64))
# Decompositions and modes with more than this factor of the best predicted time are not measured.
FAR = 1.5
MOST = 12
SETTINGS = ("chunk", "depth", "bucket")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings for averaging a step's gradients; `chunk` 0: mode p chooses chunk and depth. Sizes in bytes."""

    topology: Topology
    mode: str = "p"
    chunk: int = 0
    depth: int = 0
    bucket: int = BUCKETS[0]

    @property
    def tuning(self) -> str:
        """The value of DDLRUN_DDL_TUNING.

        >>> Candidate(Topology((2, 2)), "r", chunk=98304, depth=8).tuning
        'chunk=96K,depth=8,bucket=4M'
        """
        sizes = f"chunk={self.chunk // KIB}K,depth={self.depth}," if self.chunk else ""
        return f"{sizes}bucket={self.bucket // MIB}M"


@dataclass(frozen=True, slots=True)
class TuningSpace:
    """A job to tune: its topology, its wiring (learners per host, hosts per rack, racks), links, bytes of gradients."""

    topology: Topology
    wiring: Topology
    fabric: Fabric
    gradient: int

    def predict(self, candidate: Candidate) -> float:
        """Return the seconds that the model of network.cost predicts."""
        model = CostModel(axes_of(candidate.topology), self.wiring, self.fabric)
        bucket = min(candidate.bucket, self.gradient)
        if candidate.mode == "m":
            return self.gradient / bucket * model.cost(AllreduceAlgorithm("native"), bucket).seconds
        if not candidate.chunk:
            return model.best(candidate.mode, self.gradient, blocking=False).seconds
        names = tuple(dimension_algorithm(candidate.mode, size) for size in candidate.topology.dims)
        chunks = AllreduceAlgorithm("chunks", names, min(candidate.chunk, bucket), candidate.depth)
        return model.cost(chunks, self.gradient).seconds

    def shapes(self) -> list[Topology]:
        """Return the decompositions that differ: 2x4x1 and 2x1x4 are equal; of equal ones the job's own is taken."""
        shapes = {_longer_than_one(self.topology): self.topology}
        for shape in decompositions(self.topology):
            shapes.setdefault(_longer_than_one(shape), shape)
        return list(shapes.values())

    def all_candidates(self) -> list[Candidate]:
        """Return every candidate; no two of them do the same."""
        return [
            Candidate(shape, mode, chunk=chunk, depth=depth, bucket=bucket)
            for shape in self.shapes()
            for mode in _modes(shape)
            for bucket in self._values("bucket")
            for chunk in (self._values("chunk") if mode != "m" else (0,))
            for depth in (self._values("depth") if mode != "m" else (0,))
            if chunk <= bucket
        ]

    def first(self) -> list[Candidate]:
        """Return the decompositions and modes with the least predicted time, each with its best chunks; best first."""
        groups: dict[tuple[Topology, str], list[Candidate]] = {}
        for candidate in self.all_candidates():
            if candidate.bucket == self._values("bucket")[0]:
                groups.setdefault((candidate.topology, candidate.mode), []).append(candidate)
        best = sorted((min(group, key=self.predict) for group in groups.values()), key=self.predict)
        limit = FAR * self.predict(best[0])
        return [candidate for candidate in best if self.predict(candidate) <= limit][:MOST]

    def near(self, candidate: Candidate, setting: str) -> Iterator[Candidate]:
        """Yield the candidates that differ in one of SETTINGS alone."""
        if candidate.chunk or setting == "bucket":
            values = asdict(candidate)
            sizes = (size for size in self._values(setting) if size != values[setting])
            yield from (Candidate(**values | {setting: size}) for size in sizes)

    def _values(self, setting: str) -> tuple[int, ...]:
        if setting == "depth":
            return ALL_DEPTHS
        values = BUCKETS if setting == "bucket" else tuple(CHUNKS)
        whole = next((value for value in sorted(values) if value >= self.gradient), max(values))
        return tuple(value for value in values if value <= whole)


def default_candidate(topology: Topology, tuning: Tuning) -> Candidate:
    """Return the settings of a launch without a profile: mode p, which explores by itself."""
    return Candidate(topology, bucket=tuning.bucket)


def _longer_than_one(shape: Topology) -> tuple[int, ...]:
    return tuple(size for size in shape.dims if size > 1)


def _modes(shape: Topology) -> list[str]:
    """Return the modes whose algorithms differ; in a dimension of two learners all of them exchange halves."""
    modes: dict[tuple[str, ...], str] = {}
    for mode in MODES:
        names = (
            ("native",) if mode == "m" else tuple(dimension_algorithm(mode, size) for size in shape.dims if size > 2)
        )
        modes.setdefault(names, mode)
    return list(modes.values())
