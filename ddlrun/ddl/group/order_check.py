"""Comparison of the dimensions with the hosts of the ranks: an order of ranks in which reductions are slow."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, product
from typing import TYPE_CHECKING

from ddlrun.topology import AXES, RankOrder, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddlrun.ddl.launch_context import LaunchContext

    Hosts = Sequence[Sequence[int]]


def describe_mismatch(context: LaunchContext, hosts: Hosts) -> str:
    """Describe how the dimensions do not match the hosts, with the remedy; "" if they match.

    Args:
        context: The mode, the dimensions and the rank order.
        hosts: The ranks of each host.
    """
    topology, order = context.topology, context.order
    problem = _find_problem(topology, order, hosts)
    if not problem:
        return ""
    return (
        f"{topology} in {order.value} order does not match the hosts, so reductions are slow: {problem}; "
        f"{_find_remedy(context, hosts)}"
    )


def _find_problem(topology: Topology, order: RankOrder, hosts: Hosts) -> str:
    """Describe the first dimension that does not match the hosts, by its size or its order; "" if all match.

    Peers of a dimension are neighbours in a ring. A step that leaves a host is needed only where all ranks of the host
    are passed.
    """
    counts = {len(ranks) for ranks in hosts}
    host_of = {rank: index for index, ranks in enumerate(hosts) for rank in ranks}
    x = topology.ranks_per_host
    places = [host_of[topology.rank(at // x, at % x, order)] for at in range(topology.size)]
    first = {host: at for at, host in reversed([*enumerate(places)])}
    in_turn = sorted(places, key=first.__getitem__)
    held = 1
    for axis, size in enumerate(topology.dims):
        steps, least = (_count_steps(row, held, size) for row in (places, in_turn))
        if steps > least:
            return f"dimension {AXES[axis]} leaves a host in {steps} of {len(places)} steps instead of {least}"
        held *= size
        if len(counts) == 1 and max(counts) % held and held % max(counts):
            return f"{'x'.join(AXES[: axis + 1])} is {held}, but a host has {max(counts)} ranks"
    return ""


def _count_steps(places: Sequence[int], stride: int, size: int) -> int:
    """Return the number of neighbours in a dimension that are on different hosts.

    >>> _count_steps("abab", 1, 4), _count_steps("aabb", 1, 4), _count_steps("aabb", 1, 2)
    (4, 2, 0)
    """
    wrap = stride * (size - 1)
    following = (at - wrap if at // stride % size == size - 1 else at + stride for at in range(len(places)))
    return sum(places[at] != places[after] for at, after in enumerate(following))


def _find_remedy(context: LaunchContext, hosts: Hosts) -> str:
    """Return the settings that match the hosts, else how to place the ranks."""
    sizes = sorted(map(len, hosts))
    x = math.gcd(*sizes)
    topologies = context.topology, Topology((x, context.topology.size // x))
    orders = context.order, *(order for order in RankOrder if order is not context.order)
    for topology, order in product(topologies, orders):
        if not _find_problem(topology, order, hosts):
            return f"set {' and '.join(_settings(context, topology, order))} on all ranks"
    one_after_another = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    topology = next(shape for shape in topologies if not _find_problem(shape, RankOrder.HOST, one_after_another))
    words = list(_settings(context, topology, context.order))
    mode = f"set {words[0]}, and " if words else ""
    if [*Counter(sizes)] == [topology.ranks_per_host]:
        flag = " --rank-order host" if context.order is RankOrder.HOST else ""
        return f"{mode}start the ranks by the rank file of ddlrun gen-rankfile{flag} {topology} HOSTS"
    return f"{mode}start the ranks of a host one after another (mpirun --map-by slot) with DDLRUN_RANK_ORDER=host"


def _settings(context: LaunchContext, topology: Topology, order: RankOrder) -> Iterator[str]:
    """Yield the settings in which a topology and an order differ from those of the job."""
    if topology != context.topology:
        yield f"-mode {context.options.mode}:{topology}"
    if order is not context.order:
        yield f"DDLRUN_RANK_ORDER={order.value}"
