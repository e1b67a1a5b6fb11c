"""Cost of an allreduce on the links of a cluster: bytes through each level, steps, seconds.

The alpha-beta model (Thakur, Rabenseifner and Gropp, 2005) on links that learners share: a step takes the latency of
the furthest message, and the transfer time of the link with the most bytes. The time for adding numbers is left out.
docs/explanation/network.md derives the model and compares it with measurements.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ddlrun.allreduce_algorithms import (
    BETWEEN_HOSTS,
    ONE_HOST,
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    default_algorithm,
    first_candidates,
    neighbours,
)
from ddlrun.network.fabric import LEVELS, Fabric
from ddlrun.network.message_counts import MESSAGES, GridAxis, blocks_of, halving
from ddlrun.topology import Topology


@dataclass(frozen=True, slots=True)
class CostStage:
    """Equal steps: their number, and what each of them carries.

    `loads`: bytes through the busiest link of each level, one direction, per byte of the buffer; `furthest`: the
    highest level that a message crosses.
    """

    steps: int
    loads: tuple[float, ...]
    furthest: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one allreduce.

    `volumes`: data bytes through the busiest link of each of LEVELS, one direction. `busiest`: the level whose link
    finishes last; "latency" where steps rather than bytes take the time. `steps`: messages one after another.
    """

    algorithm: AllreduceAlgorithm
    seconds: float
    volumes: tuple[float, ...]
    busiest: str
    steps: int


@dataclass(frozen=True, slots=True)
class ChunkPipeline:
    """A buffer that is reduced in chunks: its bytes, the bytes of a chunk, and the chunks in flight."""

    size: int
    chunk: int
    depth: int


def stages(axes: Sequence[GridAxis], algorithms: Sequence[str], blocks: Sequence[int]) -> list[CostStage]:
    """Return the steps of the reduce-scatters; the allgathers take the same steps backwards.

    Dimension i works on the result of those before it: 1/(p_1 ... p_(i-1)) of the buffer (BlueConnect: Cho and others,
    2019). A level's link carries the messages that leave the learners below it.
    """
    result, piece, total = [], 1.0, math.prod(axis.size for axis in axes)
    for axis, algorithm in zip(axes, algorithms, strict=True):
        if axis.size > 1:
            by_level = [list(MESSAGES[algorithm](axis, block, total)) for block in blocks[1:]]
            for step_by_level in zip(*by_level, strict=True):
                leaving = [step.leaving for step in step_by_level]
                sent = axis.size - 1 if algorithm == "direct" else 1
                counts = (sent - leaving[0] // blocks[1], *leaving)  # the rest of a learner's messages stay in the host
                furthest = max((level for level, count in enumerate(counts) if count), default=0)
                first = step_by_level[0]
                loads = tuple(count * first.share * piece for count in counts)
                result.append(CostStage(first.steps, loads, furthest))
        piece /= axis.size
    return result


@dataclass(frozen=True, slots=True)
class CostModel:
    """The dimensions of a grid on the links of a cluster; `wiring`: learners per host, hosts per rack, racks."""

    axes: Sequence[GridAxis]
    wiring: Topology
    fabric: Fabric

    def cost(self, algorithm: AllreduceAlgorithm, size: int) -> Cost:
        """Return the cost of reducing `size` bytes with an algorithm."""
        if algorithm.method == "flat":
            return min(self._flat(algorithm, size), key=lambda cost: cost.seconds)
        names = algorithm.algorithms or ("ring",) * len(self.axes)
        halves = stages(self.axes, names, blocks_of(self.wiring))
        pipeline = ChunkPipeline(size, min(algorithm.chunk or size, size), algorithm.depth or 1)
        return self._cost(algorithm, _twice(halves), pipeline)

    def best(self, mode: str, size: int, *, blocking: bool = True) -> Cost:
        """Return the cost of reducing `size` bytes in a mode of DDL; mode p tries the same candidates as on hosts."""
        sizes = tuple(axis.size for axis in self.axes)
        tuning = ONE_HOST if self.wiring.hosts == 1 else BETWEEN_HOSTS
        usual, chunks = (
            default_algorithm(mode, tuning, sizes, MessageClass(size, "", whole=True, blocking=waits))
            for waits in (blocking, False)
        )
        if mode != "p":
            return self.cost(usual, size)
        space = AlgorithmSpace(usual, chunks, sizes, size, blocking)
        first = min(
            (self.cost(candidate, size) for candidate in first_candidates(space)), key=lambda cost: cost.seconds
        )
        near = (self.cost(candidate, size) for candidate in neighbours(first.algorithm, space))
        return min((first, *near), key=lambda cost: cost.seconds)

    def _flat(self, algorithm: AllreduceAlgorithm, size: int) -> Iterator[Cost]:
        """Yield the costs of MPI's allreduce over all learners in their order: ring, and recursive doubling."""
        blocks, total = blocks_of(self.wiring), math.prod(axis.size for axis in self.axes)
        world = GridAxis(total, 1)
        whole = ChunkPipeline(size, size, 1)
        yield self._cost(algorithm, _twice(stages([world], ["ring"], blocks)), whole)
        halves = stages([world], ["halving"], blocks)
        shares = [step.share for step in halving(world, 1, total)]
        doubling = [
            replace(stage, loads=tuple(load / share for load in stage.loads))
            for stage, share in zip(halves, shares, strict=True)
        ]
        yield self._cost(algorithm, doubling, whole)

    def _cost(self, algorithm: AllreduceAlgorithm, steps: Sequence[CostStage], pipeline: ChunkPipeline) -> Cost:
        """Add up: the first chunk travels alone; the others follow at the rate of the busiest link, or of the depth."""
        size, chunk, depth = pipeline.size, pipeline.chunk, pipeline.depth
        per_byte = [sum(stage.steps * stage.loads[level] for stage in steps) for level in range(len(LEVELS))]
        volumes = tuple(size * load for load in per_byte)
        links = self.fabric.links
        first = self._latency_and_transfer(steps, chunk)
        busy = [max(volume - link.burst, 0) / link.capacity for volume, link in zip(volumes, links, strict=True)]
        of_first = [chunk * load / link.capacity for load, link in zip(per_byte, links, strict=True)]
        by_links = max(whole - part for whole, part in zip(busy, of_first, strict=True))
        by_depth = (size / chunk / depth - 1) * first
        seconds = first + max(by_links, by_depth, 0)
        busiest = LEVELS[busy.index(max(busy))] if max(busy) > seconds / 2 else "latency"
        return Cost(
            algorithm, seconds=seconds, volumes=volumes, busiest=busiest, steps=sum(stage.steps for stage in steps)
        )

    def _latency_and_transfer(self, steps: Sequence[CostStage], size: float) -> float:
        """Return the seconds that `size` bytes take for all steps, one after another."""
        links = self.fabric.links
        # A message that goes further takes no less time; a level without a latency has that of the levels below it.
        latencies = list(accumulate((link.latency for link in links), max))
        seconds = 0.0
        for stage in steps:
            transfer = max(size * load / link.capacity for load, link in zip(stage.loads, links, strict=True))
            seconds += stage.steps * (latencies[stage.furthest] + transfer)
        return seconds


def _twice(halves: Sequence[CostStage]) -> list[CostStage]:
    """Return the stages of a reduce-scatter and of the allgather that undoes it."""
    return [replace(stage, steps=2 * stage.steps) for stage in halves]
