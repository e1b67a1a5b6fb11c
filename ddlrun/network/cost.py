"""What an allreduce costs on the links of a cluster: bytes through each level, steps, seconds.

The alpha-beta model (Thakur, Rabenseifner and Gropp, 2005) on links that learners share: a step takes the latency of
the furthest message, and the bytes of the link that carries most of them. The adding up of numbers costs nothing here.
docs/explanation/network.md derives it and shows how well it holds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

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
from ddlrun.topology import Topology

# Links of a level carry the same where dimensions follow the wiring; elsewhere so many of them are looked at.
MOST_LOOKED_AT = 64


class GridAxis(NamedTuple):
    """A dimension of the grid: its learners, and how far two neighbours are apart, hosts and racks in their order."""

    size: int
    stride: int


class CostStage(NamedTuple):
    """Steps that are alike: how many; bytes through the busiest link of each level, one direction, in one of them."""

    steps: int
    loads: tuple[float, ...]
    """Each for one byte of the buffer."""
    furthest: int
    """The highest level that a message crosses."""


class Cost(NamedTuple):
    """What one allreduce takes.

    `volumes`: data bytes through the busiest link of each of LEVELS, one direction. `busiest`: the level whose link
    is the last to be done; "latency" where steps rather than bytes take the time. `steps`: messages one after another.
    """

    way: AllreduceAlgorithm
    seconds: float
    volumes: tuple[float, ...]
    busiest: str
    steps: int


def axes_of(topology: Topology) -> list[GridAxis]:
    """Return the dimensions over hosts that stand rack by rack."""
    strides = [1]
    for size in topology.dims:
        strides.append(strides[-1] * size)
    return [GridAxis(size, stride) for size, stride in zip(topology.dims, strides, strict=False)]


def interleaved(topology: Topology) -> list[GridAxis]:
    """Return the dimensions over hosts that stand a rack after the other in turn: what a careless hostfile does."""
    x, *others = topology.dims
    axes, stride = [GridAxis(x, 1)], topology.size
    for size in others:
        stride //= size
        axes.append(GridAxis(size, stride))
    return axes


def blocks_of(wiring: Topology) -> tuple[int, ...]:
    """Return how many learners are below a link of each of LEVELS; `wiring`: learners a host, hosts a rack, racks."""
    blocks = [1]
    for size in (*wiring.dims, 1)[:3]:
        blocks.append(blocks[-1] * size)
    return tuple(blocks)


def ring(axis: GridAxis, block: int, total: int) -> Iterator[tuple[int, float, int]]:
    """Yield steps, the size of a message, and how many leave a block at once: each learner sends to the next.

    Patarasuk and Yuan, 2009: p - 1 steps of 1/p.
    """
    size, stride = axis
    period = size * stride

    def last_in_axis(below: int) -> int:
        """Count the learners below a number that are the last of their ring, whose next one is the first."""
        return below // period * stride + max(0, below % period - (period - stride))

    def leaving(start: int) -> int:
        end = min(start + block, total)
        onwards = max(start, end - stride)
        back = min(end, start + period - stride)
        return (end - onwards) - (last_in_axis(end) - last_in_axis(onwards)) + last_in_axis(back) - last_in_axis(start)

    yield size - 1, 1 / size, max(map(leaving, range(0, min(total, block * MOST_LOOKED_AT), block)))


def direct(axis: GridAxis, block: int, total: int) -> Iterator[tuple[int, float, int]]:
    """Yield what `ring` does, for one step in which each learner sends to all others of its group."""
    size, stride = axis
    period = size * stride

    def cut(length: int) -> int:
        """Count the messages between the first `length` learners of a period and the others of it."""
        together, more = divmod(length, stride)
        return more * (together + 1) * (size - together - 1) + (stride - more) * together * (size - together)

    def leaving(start: int) -> int:
        end = min(start + block, total)
        whole = min((start // period + 1) * period, end)
        return cut(whole - start) + (cut(end % period) if end > whole else 0)

    yield 1, 1 / size, max(map(leaving, range(0, min(total, block * MOST_LOOKED_AT), block)))


def halving(axis: GridAxis, block: int, total: int) -> Iterator[tuple[int, float, int]]:
    """Yield what `ring` does, for ceil(lg p) steps with the other half of a group that halves (Rabenseifner).

    Exact for p = 2^k in a block that holds a whole number of halves or is held by one; else at most that.
    """
    part, share = axis.size, 1.0
    while part > 1:
        apart = (part + 1) // 2
        share *= apart / part
        inside = block % (2 * apart * axis.stride) == 0 or block >= total
        yield 1, share, 0 if inside else min(block, 2 * apart * axis.stride)
        part = apart


MESSAGES: dict[str, Callable[[GridAxis, int, int], Iterator[tuple[int, float, int]]]] = {
    "ring": ring, "direct": direct, "halving": halving,
}  # fmt: skip


def stages(axes: Sequence[GridAxis], algorithms: Sequence[str], blocks: Sequence[int]) -> list[CostStage]:
    """Return the steps of the reduce-scatters; the allgathers are the same ones backwards.

    Dimension i works on what those before it left: 1/(p_1 ... p_(i-1)) of the buffer (BlueConnect: Cho and others,
    2019). A level's link carries whatever leaves the learners below it.
    """
    found, piece, total = [], 1.0, math.prod(axis.size for axis in axes)
    for axis, algorithm in zip(axes, algorithms, strict=True):
        if axis.size > 1:
            over = [list(MESSAGES[algorithm](axis, block, total)) for block in blocks[1:]]
            for alike in zip(*over, strict=True):
                steps, share = alike[0][:2]
                leaving = [count for *_, count in alike]
                each = axis.size - 1 if algorithm == "direct" else 1
                counts = (
                    each - leaving[0] // blocks[1],
                    *leaving,
                )  # the rest of what a learner sends stays in the host
                furthest = max((level for level, count in enumerate(counts) if count), default=0)
                found.append(CostStage(steps, tuple(count * share * piece for count in counts), furthest))
        piece /= axis.size
    return found


class CostModel(NamedTuple):
    """The dimensions of a grid on the links of a cluster; `wiring`: learners a host, hosts a rack, racks an aisle."""

    axes: Sequence[GridAxis]
    wiring: Topology
    fabric: Fabric

    def cost(self, way: AllreduceAlgorithm, size: int) -> Cost:
        """Return what reducing `size` bytes takes in a way."""
        if way.method == "flat":
            return min(self._flat(way, size), key=lambda cost: cost.seconds)
        algorithms = way.algorithms or ("ring",) * len(self.axes)
        halves = stages(self.axes, algorithms, blocks_of(self.wiring))
        whole = [stage._replace(steps=2 * stage.steps) for stage in halves]
        return self._cost(way, whole, size, min(way.chunk or size, size), way.depth or 1)

    def best(self, mode: str, size: int, *, blocking: bool = True) -> Cost:
        """Return what reducing takes in a mode of DDL; p tries what it tries when it runs."""
        sizes = tuple(axis.size for axis in self.axes)
        tuning = ONE_HOST if self.wiring.hosts == 1 else BETWEEN_HOSTS
        usual, chunks = (
            default_algorithm(mode, tuning, sizes, MessageClass(size, "", True, one)) for one in (blocking, False)
        )
        if mode != "p":
            return self.cost(usual, size)
        space = AlgorithmSpace(usual, chunks, sizes, size, blocking)
        first = min((self.cost(way, size) for way in first_candidates(space)), key=lambda cost: cost.seconds)
        near = (self.cost(way, size) for way in neighbours(first.way, space))
        return min((first, *near), key=lambda cost: cost.seconds)

    def _flat(self, way: AllreduceAlgorithm, size: int) -> Iterator[Cost]:
        """Yield MPI's allreduce over all learners in their order: ring, and recursive doubling for small sizes."""
        blocks, total = blocks_of(self.wiring), math.prod(axis.size for axis in self.axes)
        world = GridAxis(total, 1)
        whole = [stage._replace(steps=2 * stage.steps) for stage in stages([world], ["ring"], blocks)]
        yield self._cost(way, whole, size, size, 1)
        halves = stages([world], ["halving"], blocks)
        shares = [share for _, share, _ in halving(world, 1, total)]
        doubling = [
            stage._replace(loads=tuple(load / share for load in stage.loads))
            for stage, share in zip(halves, shares, strict=True)
        ]
        yield self._cost(way, doubling, size, size, 1)

    def _cost(self, way: AllreduceAlgorithm, steps: Sequence[CostStage], size: int, chunk: int, depth: int) -> Cost:
        """Add up: the first chunk walks alone; the rest comes as fast as the busiest link, or `depth` walks at once."""
        per_byte = [sum(stage.steps * stage.loads[level] for stage in steps) for level in range(len(LEVELS))]
        volumes = tuple(size * each for each in per_byte)
        links = self.fabric.links
        first = self._walk(steps, chunk)
        busy = [max(volume - link.burst, 0) / link.capacity for volume, link in zip(volumes, links, strict=True)]
        own = [chunk * each / link.capacity for each, link in zip(per_byte, links, strict=True)]
        at_links = max(all_of - one for all_of, one in zip(busy, own, strict=True))
        at_depth = (size / chunk / depth - 1) * first
        seconds = first + max(at_links, at_depth, 0)
        busiest = LEVELS[busy.index(max(busy))] if max(busy) > seconds / 2 else "latency"
        return Cost(way, seconds, volumes, busiest, sum(stage.steps for stage in steps))

    def _walk(self, steps: Sequence[CostStage], size: float) -> float:
        """Return the seconds that so many bytes take for all steps, one after another."""
        links = self.fabric.links
        # A message that goes further takes no less; of a level that is not described nobody knows more.
        latencies = list(accumulate((link.latency for link in links), max))
        return sum(
            stage.steps
            * (
                latencies[stage.furthest]
                + max(size * load / link.capacity for load, link in zip(stage.loads, links, strict=True))
            )
            for stage in steps
        )
