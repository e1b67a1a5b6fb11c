"""The ways in which an array can be reduced, which one a mode takes, in chunks of what size: for ddl and its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KIB, MIB = 1024, 1024 * 1024

ALGORITHMS = {"r": "ring", "b": "ring", "n": "ring", "c": "halving"}
# All that there are: m is MPI's own, p finds the best.
MODES = (*ALGORITHMS, "m", "p")
# Modes that ask for one algorithm get it for small messages too.
MAY_GO_FLAT = "bnp"
MOST_DIRECT = 4
CHUNKS = [kib * 1024 for kib in (96, 32, 64, 128, 256, 512, 1024, 4096)]
DEPTHS = (2, 4, 16)


class Tuning(NamedTuple):
    """Bytes of a chunk, chunks in flight, bytes up to which MPI's flat allreduce serves, bytes of a bucket.

    `explore`: the reductions that mode p may spend on a size to find the best way; 0: it takes the sizes before.
    `wire`: what float32 travels as, for `wire.parse_wire`; what `flat` counts as small travels as it is.
    """

    chunk: int = 96 * KIB
    depth: int = 8
    flat: int = 64 * KIB
    bucket: int = 4 * MIB
    explore: int = 40
    wire: str = ""


# Measured. Between hosts small chunks fill all links at once; halves of 96 KiB still go eagerly over TCP (to 64 KiB).
# In a host's shared memory there is one link, each chunk costs, and MPI's own allreduce is the faster one as long as
# its temporaries are cheap.
BETWEEN_HOSTS = Tuning()
ONE_HOST = Tuning(chunk=512 * KIB, depth=4, flat=16 * MIB)


class AllreduceAlgorithm(NamedTuple):
    """How an array is reduced.

    `how` is "flat" (one MPI_Allreduce), "native" (MPI's collectives, dimension by dimension) or "chunks": our own
    messages, with an algorithm a dimension, `chunk` bytes each and `depth` of them under way. `wire` ("bfloat16:YZ")
    is what float32 travels as in which dimensions, a chunk's bytes being those that travel; "" as it is.
    """

    how: str
    algorithms: tuple[str, ...] = ()
    chunk: int = 0
    depth: int = 0
    wire: str = ""

    def __str__(self) -> str:
        if self.how == "chunks":
            chunks = f"{'/'.join(self.algorithms)} in chunks of {self.chunk // 1024}K, {self.depth} under way"
            return f"{chunks}, by {self.wire}" if self.wire else chunks
        return {"flat": "MPI's allreduce", "native": "MPI's collectives by dimension"}[self.how]


class MessageClass(NamedTuple):
    """One allreduce, as far as the choice of an algorithm goes.

    `size` is in bytes; `whole` is set where it spans the whole grid, `blocking` where the caller waits for it;
    `wire` is that of `AllreduceAlgorithm`.
    """

    size: int
    dtype: str
    whole: bool
    blocking: bool
    wire: str = ""


def algorithm(mode: str, learners: int) -> str:
    """Return what a mode takes in a dimension of so many learners, as long as nothing was measured."""
    return ALGORITHMS.get(mode) or ("direct" if learners <= MOST_DIRECT else "ring")


def usual_way(mode: str, tuning: Tuning, learners: Sequence[int], case: MessageClass) -> AllreduceAlgorithm:
    """Return the way of a mode without measuring; `learners` are those of each dimension."""
    if case.whole and case.blocking and mode in MAY_GO_FLAT and case.size <= tuning.flat:
        return AllreduceAlgorithm("flat")
    if mode == "m":
        return AllreduceAlgorithm("native")
    return AllreduceAlgorithm(
        "chunks", tuple(algorithm(mode, size) for size in learners), tuning.chunk, tuning.depth, case.wire
    )


class AlgorithmSpace(NamedTuple):
    """What to look for: the usual way, our own messages' usual way, learners of each dimension, bytes."""

    usual: AllreduceAlgorithm
    chunks: AllreduceAlgorithm
    learners: tuple[int, ...]
    size: int
    blocking: bool


def first_ways(space: AlgorithmSpace) -> Iterator[AllreduceAlgorithm]:
    """Yield what is worth a try: the usual way, MPI's own where the caller waits, float32, chunks of several sizes."""
    yield space.usual
    if space.blocking:
        yield AllreduceAlgorithm("flat")
        yield AllreduceAlgorithm("native")
    if space.chunks.wire:
        yield space.chunks._replace(wire="")  # where links are fast the conversions cost more than they save
    whole = next((chunk for chunk in sorted(CHUNKS) if chunk >= space.size), max(CHUNKS))
    yield from (space.chunks._replace(chunk=chunk) for chunk in CHUNKS if chunk <= whole)


def near_ways(best: AllreduceAlgorithm, space: AlgorithmSpace) -> Iterator[AllreduceAlgorithm]:
    """Yield other depths and, a dimension at a time, other algorithms; none if the best is MPI's own."""
    if best.how != "chunks":
        return
    chunks = -(-space.size // best.chunk)
    yield from (best._replace(depth=depth) for depth in DEPTHS if min(depth, chunks) != min(best.depth, chunks))
    for place, count in enumerate(space.learners):
        # Two learners exchange halves, whatever it is called.
        for name in ("ring", "halving", "direct") if count > 2 else ():
            if name != best.algorithms[place]:
                yield best._replace(algorithms=(*best.algorithms[:place], name, *best.algorithms[place + 1 :]))
