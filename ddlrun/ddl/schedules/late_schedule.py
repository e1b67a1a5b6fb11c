"""Schedules of an allreduce with a host that is late: the other ones begin without it, and take it last.

1. Ranks of a host reduce among each other, dimension by dimension.
2. The hosts that are not late reduce-scatter among each other.
3. Each of them exchanges its block with the late host. The sum of the others and the late host's elements travel at the
   same time, and both sides add them, in the same order.
4. The hosts that are not late send each other their blocks, and the ranks of a host theirs.

Steps 3 and 4 alone wait for the late host. It sends and receives the array once, as do the others after its arrival:
S/B seconds for S bytes and links of B bytes/s, instead of 2 (n - 1)/n S/B. The idea is that of StragglAR, arXiv
2505.23523, which has rounds instead of chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.schedules.partition import block_bounds
from ddlrun.ddl.schedules.schedule import (
    REDUCE_SCATTERS,
    Message,
    ScheduleStep,
    Steps,
    mirror,
    own_block,
    reduce_scatter,
    with_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.ddl.schedules.schedule import Dimension


def allreduce(
    dimensions: Sequence[Dimension], late: int, count: int, *, division: str = ""
) -> tuple[ScheduleStep, ...]:
    """Return the steps of an allreduce that takes a host last.

    Args:
        dimensions: In the order in which they are reduced. The last one with several learners is that between hosts.
        late: The place of the late host there.
        count: Elements of the buffer.
        division: As for `reduce_scatter`.
    """
    *inner, outer = [dimension for dimension in dimensions if len(dimension.peers) > 1]
    on_host = reduce_scatter(inner, count, division="each" if division == "each" else "")
    first, end = own_block(inner, count)
    others = [place for place in range(len(outer.peers)) if place != late]
    bounds = [first + bound for bound in block_bounds(end - first, len(others))]
    learners = 1
    for dimension in dimensions if division == "once" else [outer] if division else []:
        learners *= len(dimension.peers)
    if outer.me == late:
        exchange = _exchange([outer.peers[place] for place in others], bounds, learners)
        first_step, *rest = [*on_host, exchange._replace(theirs_first=True)]
        return (first_step._replace(late=True), *rest, *mirror(on_host))
    me, peers = others.index(outer.me), [outer.peers[place] for place in others]
    among_others: Steps = [with_ranks(step, peers) for step in REDUCE_SCATTERS["direct"](me, bounds)]
    exchange = _exchange([outer.peers[late]], bounds[me : me + 2], learners)._replace(late=True)
    return (*on_host, *among_others, exchange, *mirror(among_others), *mirror(on_host))


def _exchange(peers: Sequence[int], bounds: Sequence[int], divisor: int) -> ScheduleStep:
    """Return the exchange of a block with each peer."""
    blocks = zip(peers, bounds, bounds[1:], strict=False)
    messages = tuple(Message(peer, low, high) for peer, low, high in blocks if low < high)
    return ScheduleStep(messages, messages, divisor=divisor, closing=len(messages))
