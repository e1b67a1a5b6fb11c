"""Schedules of an allreduce over a grid: which learner sends what to whom, as plain values.

Only reduce-scatters are written down. The allgather is the mirrored reduce-scatter: the steps in reverse order, with
each message returning to its sender. So it takes every block to all learners that contributed to its sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.ddl.schedules.partition import binomial_tree, block_bounds
from ddlrun.ddl.selection.wire_compression import GROUP


class Message(NamedTuple):
    """Elements low to high of the buffer, sent to or received from the learner `peer`."""

    peer: int
    low: int
    high: int


class ScheduleStep(NamedTuple):
    """Messages that travel at the same time.

    combine: received elements are combined with the buffer; else they are stored in it. closing: the number of last
    received blocks whose sums are complete with them. divisor: for averages, the number by which these blocks are
    divided. wire: the type that float32 is sent as, "" for float32. settled: the type to which these
    blocks are rounded once they are complete for all, so that all learners get the same bits in any dimension; "" for
    none. late: the first step that waits for a late learner; other chunks need not wait for it. theirs_first: received
    elements are the first operand of the combination, as they are for their sender: then both get the same bits, also
    of zeros with a sign and of NaNs.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    combine: bool = True
    divisor: int = 1
    wire: str = ""
    settled: str = ""
    closing: int = 1
    late: bool = False
    theirs_first: bool = False


Steps = list[ScheduleStep]
ReduceScatter = Callable[[int, Sequence[int]], Steps]


def ring(me: int, bounds: Sequence[int]) -> Steps:
    """Return a reduce-scatter of p - 1 steps, in which each learner sends to the next one.

    `bounds` are the p + 1 offsets of the blocks; block i ends at learner i. Each learner sends (p - 1)/p of the buffer,
    the least possible: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009.
    """
    size = len(bounds) - 1

    def message(peer: int, block: int) -> tuple[Message, ...]:
        return _message(peer % size, bounds, block % size, block % size + 1)

    return [
        ScheduleStep(sends=message(me + 1, me - step - 1), receives=message(me - 1, me - step - 2))
        for step in range(size - 1)
    ]


def direct(me: int, bounds: Sequence[int]) -> Steps:
    """Return a reduce-scatter of one step, in which each block is sent straight to its learner."""
    peers = [peer for peer in range(len(bounds) - 1) if peer != me]
    if not peers:
        return []
    sends = [message for peer in peers for message in _message(peer, bounds, peer, peer + 1)]
    receives = [message for peer in peers for message in _message(peer, bounds, me, me + 1)]
    return [ScheduleStep(sends=tuple(sends), receives=tuple(receives))]


def halving(me: int, bounds: Sequence[int]) -> Steps:
    """Return a reduce-scatter of ceil(log2 p) steps for any p, by recursive halving.

    In each step the lower half of the learners exchanges blocks with the upper half; then each half does the same
    within itself. If p is odd, the lower half has one learner more. Its last learner sends to the last learner of the
    upper half, which also has a partner of its own.
    """
    steps, low, high = Steps(), 0, len(bounds) - 1
    while high - low > 1:
        middle = (low + high + 1) // 2
        upper = me >= middle
        pairs = [(learner, min(learner + middle - low, high - 1)) for learner in range(low, middle)]
        # Every lower learner sends the upper blocks. Every upper one sends the lower blocks once, to its first partner.
        downs = pairs[: high - middle]
        my_ups = [pair for pair in pairs if me in pair]
        my_downs = [pair for pair in downs if me in pair]
        to_upper = [m for pair in my_ups for m in _message(pair[not upper], bounds, middle, high)]
        to_lower = [m for pair in my_downs for m in _message(pair[not upper], bounds, low, middle)]
        sends, receives = (to_lower, to_upper) if upper else (to_upper, to_lower)
        steps.append(ScheduleStep(sends=tuple(sends), receives=tuple(receives)))
        low, high = (middle, high) if upper else (low, middle)
    return steps


REDUCE_SCATTERS: Mapping[str, ReduceScatter] = {"ring": ring, "direct": direct, "halving": halving}


class Dimension(NamedTuple):
    """One dimension from the view of a learner.

    peers: the ranks of its group, in the order of the dimension. me: its own index there. algorithm: a key of
    `REDUCE_SCATTERS`. wire: the type that float32 is sent as, "" for float32.
    """

    peers: tuple[int, ...]
    me: int
    algorithm: str
    wire: str = ""


def reduce_scatter(dimensions: Sequence[Dimension], count: int, *, division: str = "", summed: int = 1) -> Steps:
    """Return the steps that leave in each learner's block (`own_block`) the sum over all learners.

    Args:
        dimensions: In the order in which they are reduced.
        count: Elements of the buffer.
        division: For averages: "once" divides the last sum by the number of learners, "each" the sum of each dimension
            by its size.
        summed: The number of learners whose sum the buffer is already. "once" divides by it, too.
    """
    size, settled = _product(dimensions), wire_of(dimensions)
    leaves, first, steps = _leaves(count, size, settled), 0, Steps()
    divisor = summed if division == "once" else 1
    for dimension in dimensions:
        peers = dimension.peers
        size //= len(peers)
        bounds = leaves[first : first + len(peers) * size + 1 : size]
        scattered = REDUCE_SCATTERS[dimension.algorithm](dimension.me, bounds)
        phase = [with_ranks(step, peers)._replace(wire=dimension.wire) for step in scattered]
        first += dimension.me * size
        divisor *= len(peers)
        if phase and (division == "each" or (division == "once" and size == 1)):
            phase[-1] = phase[-1]._replace(divisor=divisor)
            divisor = 1
        if phase and size == 1:
            phase[-1] = phase[-1]._replace(settled=settled)
        steps += phase
    return steps


def scatter_part(dimensions: Sequence[Dimension], count: int, *, division: str = "") -> Steps:
    """Return the reduce-scatter of the first dimension alone; `reduce_scatter` of the others is to follow."""
    return reduce_scatter(dimensions[:1], count, division="each" if division == "each" else "")


def between_hosts(dimensions: Sequence[Dimension], count: int, *, division: str = "") -> Steps:
    """Return the allreduce of a block that `scatter_part` has left with this learner, over the other dimensions."""
    scatter = reduce_scatter(dimensions[1:], count, division=division, summed=len(dimensions[0].peers))
    return scatter + mirror(scatter)


def mirror(steps: Sequence[ScheduleStep]) -> Steps:
    """Return the allgather that is the inverse of a reduce-scatter."""
    return [
        ScheduleStep(sends=step.receives, receives=step.sends, combine=False, wire=step.wire)
        for step in reversed(steps)
    ]


def wire_of(dimensions: Sequence[Dimension]) -> str:
    """Return the type that float32 is sent as in a dimension that has messages, or ""."""
    return next((dimension.wire for dimension in dimensions if dimension.wire and len(dimension.peers) > 1), "")


def own_block(dimensions: Sequence[Dimension], count: int) -> tuple[int, int]:
    """Return (low, high) of the block whose sum a reduce-scatter leaves with this learner."""
    size, first = _product(dimensions), 0
    bounds = block_bounds(count, size)
    for dimension in dimensions:
        size //= len(dimension.peers)
        first += dimension.me * size
    return bounds[first], bounds[first + 1]


def _leaves(count: int, size: int, wire: str) -> tuple[int, ...]:
    """Return the offsets of the learners' blocks. By int8 all messages begin with a group that has its own scale."""
    group = GROUP if wire == "int8" else 1
    return tuple(min(group * bound, count) for bound in block_bounds(-(-count // group), size))


def _product(dimensions: Sequence[Dimension]) -> int:
    return math.prod(len(dimension.peers) for dimension in dimensions)


def _message(peer: int, bounds: Sequence[int], first: int, end: int) -> tuple[Message, ...]:
    """Return the message with blocks first to end, or none if they are empty, which both peers know."""
    low, high = bounds[first], bounds[end]
    return (Message(peer, low, high),) if low < high else ()


def with_ranks(step: ScheduleStep, peers: Sequence[int]) -> ScheduleStep:
    """Replace the indices of peers in a dimension by their ranks."""
    sends = tuple(message._replace(peer=peers[message.peer]) for message in step.sends)
    receives = tuple(message._replace(peer=peers[message.peer]) for message in step.receives)
    return step._replace(sends=sends, receives=receives)


def broadcast(rank: int, size: int, root: int, count: int) -> tuple[ScheduleStep, ...]:
    """Return the steps of a broadcast of `count` elements from the rank `root`, by a binomial tree.

    >>> [step.sends for step in broadcast(0, 4, 0, 9)]
    [(Message(peer=2, low=0, high=9), Message(peer=1, low=0, high=9))]
    """
    parent, children = binomial_tree(rank, size, root)
    arrive = ScheduleStep((), tuple(Message(peer, 0, count) for peer in [parent] if peer is not None), combine=False)
    pass_on = ScheduleStep(tuple(Message(child, 0, count) for child in children), (), combine=False)
    return tuple(step for step in (arrive, pass_on) if step.receives or step.sends)


def pairwise(rank: int, sends: Sequence[int], receives: Sequence[int]) -> tuple[ScheduleStep, ...]:
    """Return a step in which each rank sends a block to each other one.

    The buffer has the blocks for all ranks and, after them, the blocks of all ranks. `sends` and `receives` are their
    bounds in the buffer: one more than there are ranks. A rank's block for itself is left to the caller.
    """
    return (
        ScheduleStep(
            sends=_messages(rank, sends),
            receives=_messages(rank, receives),
            combine=False,
        ),
    )


def _messages(rank: int, bounds: Sequence[int]) -> tuple[Message, ...]:
    blocks = enumerate(zip(bounds, bounds[1:], strict=False))
    return tuple(Message(peer, low, high) for peer, (low, high) in blocks if peer != rank and low < high)
