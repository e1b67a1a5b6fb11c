"""Who sends what to whom: the steps of an allreduce over a grid, as plain values.

Only reduce-scatters are written down. The allgather is the reduce-scatter backwards: the steps in reverse order,
and each message goes back where it came from, so it brings every block to all who had a part in its sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.ddl.partition import cuts


class Message(NamedTuple):
    """Elements low to high of the buffer, to or from the learner `peer`."""

    peer: int
    low: int
    high: int


class ScheduleStep(NamedTuple):
    """Messages that travel at once. What is received is combined into the buffer, or stored where `combine` is not set.

    `divisor`, for averages: what the last block received is divided by, as its sum is complete with it. `wire` is the
    16 bit type that float32 travels as, "" for float32; `settled` the one that the last block received is rounded to
    when it is complete for all, so that all learners get the same bits by whatever way.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    combine: bool = True
    divisor: int = 1
    wire: str = ""
    settled: str = ""


Steps = list[ScheduleStep]
Reduce = Callable[[int, Sequence[int]], Steps]


def ring(me: int, bounds: Sequence[int]) -> Steps:
    """Reduce-scatter in p - 1 steps, each with a message to the next learner; block i ends at learner i.

    `bounds` are the p + 1 offsets of the blocks. Patarasuk and Yuan, 2009: sends (p - 1)/p of the buffer, the least.
    """
    size = len(bounds) - 1

    def message(peer: int, block: int) -> tuple[Message, ...]:
        return _message(peer % size, bounds, block % size, block % size + 1)

    return [ScheduleStep(message(me + 1, me - s - 1), message(me - 1, me - s - 2)) for s in range(size - 1)]


def direct(me: int, bounds: Sequence[int]) -> Steps:
    """Reduce-scatter in one step, each block straight to its learner."""
    others = [peer for peer in range(len(bounds) - 1) if peer != me]
    sends = [message for peer in others for message in _message(peer, bounds, peer, peer + 1)]
    receives = [message for peer in others for message in _message(peer, bounds, me, me + 1)]
    return [ScheduleStep(tuple(sends), tuple(receives))] * bool(others)


def halving(me: int, bounds: Sequence[int]) -> Steps:
    """Reduce-scatter in ceil(lg p) steps, for any p: half of the learners against the other half, then inside each.

    Where p is odd the lower half has one more; its last sends beside its neighbour, to the upper half's last.
    """
    steps, low, high = Steps(), 0, len(bounds) - 1
    while high - low > 1:
        middle = (low + high + 1) // 2
        upper = me >= middle
        pairs = [(learner, min(learner + middle - low, high - 1)) for learner in range(low, middle)]
        # Every lower one sends the upper blocks; every upper one sends the lower blocks once, to its first pair.
        downs = pairs[: high - middle]
        ups = [pair for pair in pairs if me in pair]
        backs = [pair for pair in downs if me in pair]
        to_upper = [m for pair in ups for m in _message(pair[not upper], bounds, middle, high)]
        to_lower = [m for pair in backs for m in _message(pair[not upper], bounds, low, middle)]
        steps.append(ScheduleStep(tuple(to_lower if upper else to_upper), tuple(to_upper if upper else to_lower)))
        low, high = (middle, high) if upper else (low, middle)
    return steps


REDUCES: Mapping[str, Reduce] = {"ring": ring, "direct": direct, "halving": halving}


class Dimension(NamedTuple):
    """One dimension as a learner sees it: the ranks of its group in order, its own place there, the algorithm.

    `wire` is the 16 bit type that float32 travels as there, "" for float32.
    """

    peers: tuple[int, ...]
    me: int
    algorithm: str
    wire: str = ""


def reduce_scatter(dimensions: Sequence[Dimension], count: int, *, average: str = "") -> Steps:
    """Return the steps that leave in each learner's block (`own_block`) the sum over all.

    `average`: "once" divides the last sum by the number of learners, "each" every dimension's by its own size.
    """
    size = _product(dimensions)
    leaves, first, steps, divisor = cuts(count, size), 0, Steps(), 1
    settled = wire_of(dimensions)
    for peers, me, algorithm, wire in dimensions:
        size //= len(peers)
        bounds = leaves[first : first + len(peers) * size + 1 : size]
        found = [_named(step, peers)._replace(wire=wire) for step in REDUCES[algorithm](me, bounds)]
        first += me * size
        divisor *= len(peers)
        if found and (average == "each" or (average == "once" and size == 1)):
            found[-1] = found[-1]._replace(divisor=divisor)
            divisor = 1
        if found and size == 1:
            found[-1] = found[-1]._replace(settled=settled)
        steps += found
    return steps


def backwards(steps: Sequence[ScheduleStep]) -> Steps:
    """Return the allgather that undoes a reduce-scatter."""
    return [ScheduleStep(step.receives, step.sends, combine=False, wire=step.wire) for step in reversed(steps)]


def wire_of(dimensions: Sequence[Dimension]) -> str:
    """Return the 16 bit type that a dimension with messages uses, else ""."""
    return next((one.wire for one in dimensions if one.wire and len(one.peers) > 1), "")


def own_block(dimensions: Sequence[Dimension], count: int) -> tuple[int, int]:
    """Return (low, high) of the block whose sum a reduce-scatter leaves with this learner."""
    size, first = _product(dimensions), 0
    bounds = cuts(count, size)
    for peers, me, *_ in dimensions:
        size //= len(peers)
        first += me * size
    return bounds[first], bounds[first + 1]


def _product(dimensions: Sequence[Dimension]) -> int:
    size = 1
    for peers, *_ in dimensions:
        size *= len(peers)
    return size


def _message(peer: int, bounds: Sequence[int], first: int, end: int) -> tuple[Message, ...]:
    """Return the message with blocks first to end; none where they are empty, which both ends know."""
    low, high = bounds[first], bounds[end]
    return (Message(peer, low, high),) if low < high else ()


def _named(step: ScheduleStep, peers: Sequence[int]) -> ScheduleStep:
    sends, receives = (tuple(m._replace(peer=peers[m.peer]) for m in part) for part in step[:2])
    return step._replace(sends=sends, receives=receives)
