"""Sizes of the blocks of an allreduce on unequal links: the share that each host and each rack sums up.

Hosts of a rack send each other their parts of the buffer directly; then racks do the same with the sums of their hosts.
Per byte of the buffer, a host with the share a of its rack of n hosts, among K racks, sends and receives:

    1 + (n - 2) a                 inside the rack
    a ((1 - v) + (K - 1) v)       between racks, where v is the share of its rack
    1 + (K - 2) v                 through the uplink of the rack

So a host with a slow NIC is given a smaller share, down to none: then it sends its part once and receives the result
once, which is the least possible. Without racks the time is max(1/b, 2 (H - 1)/B) per byte for H hosts, where b is the
rate of the slowest NIC and B that of all together. No allreduce is faster: see "Don't Let a Few Network Failures Slow
the Entire AllReduce", arXiv 2606.01680, 2026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Steps of the bisection: the width of the interval is then below the resolution of a float.
HALVINGS = 100


@dataclass(frozen=True, slots=True)
class JobLinks:
    """The links of a job, in bytes/s, one direction.

    nics: the rate of each host, rack by rack. racks: the number of hosts of each rack. uplinks: the rate of each rack;
    empty: uplinks are no limit.
    """

    nics: tuple[float, ...]
    racks: tuple[int, ...]
    uplinks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockShares:
    """The shares of racks, and of the hosts of each rack; each list adds up to 1.

    seconds: the transfer time per byte of the buffer on the busiest link.
    """

    racks: tuple[float, ...]
    hosts: tuple[tuple[float, ...], ...]
    seconds: float


def divide_blocks(links: JobLinks) -> BlockShares:
    """Return the shares with the least transfer time: rack by rack, or as if all hosts were in one rack.

    >>> divide_blocks(JobLinks(nics=(1.0, 1.0, 0.5, 1.0), racks=(4,))).hosts[0][2]
    0.0
    """
    by_rack = _divide_by_rack(links)
    if len(links.racks) == 1 or not links.uplinks:
        return by_rack
    flat = _divide_by_rack(JobLinks(links.nics, (len(links.nics),)))
    across = max(load / rate for load, rate in zip(_flat_uplink_loads(flat, links.racks), links.uplinks, strict=True))
    flat = replace(flat, seconds=max(flat.seconds, across))
    return min(by_rack, flat, key=lambda shares: shares.seconds)


def nic_loads(shares: BlockShares) -> list[float]:
    """Return the bytes through each host's NIC, one direction, per byte of the buffer."""
    count = len(shares.racks)
    return [
        _host_load(share, rack_share, len(hosts), count)
        for rack_share, hosts in zip(shares.racks, shares.hosts, strict=True)
        for share in hosts
    ]


def uplink_loads(shares: BlockShares, racks: Sequence[int]) -> list[float]:
    """Return the bytes through each uplink, one direction, per byte of the buffer; `racks` has the hosts of each."""
    if len(racks) == 1:
        return []
    if len(shares.racks) == 1:
        return _flat_uplink_loads(shares, racks)
    return [1 + (len(racks) - 2) * share for share in shares.racks]


def is_equal(links: JobLinks) -> bool:
    """Return True if all NICs have the same rate, and all racks the same hosts and the same uplink."""
    return len(set(links.nics)) == len(set(links.racks)) == 1 and len(set(links.uplinks)) <= 1


def cut(low: int, high: int, shares: Sequence[float]) -> list[int]:
    """Return the bounds of blocks with these shares of the elements low to high.

    >>> cut(0, 10, (0.5, 0.0, 0.5))
    [0, 5, 5, 10]
    """
    inner = [low + round((high - low) * share) for share in accumulate(shares[:-1])]
    return [low, *(min(bound, high) for bound in inner), high]


def _divide_by_rack(links: JobLinks) -> BlockShares:
    by_rack = _rates_by_rack(links)
    uplinks = links.uplinks or (math.inf,) * len(by_rack)
    seconds = _find_seconds(by_rack, uplinks)
    room = [max(_rack_room(seconds, members, uplink), 0.0) for members, uplink in zip(by_rack, uplinks, strict=True)]
    racks = _normalise(room) if len(by_rack) > 2 else (1 / len(by_rack),) * len(by_rack)
    hosts = tuple(_normalise([max(seconds * rate - 1, 0.0) for rate in members]) for members in by_rack)
    return BlockShares(racks, hosts, seconds)


def _find_seconds(by_rack: Sequence[Sequence[float]], uplinks: Sequence[float]) -> float:
    """Return the least seconds per byte in which the links of all racks carry their loads."""
    count = len(by_rack)
    if count == 1 and len(by_rack[0]) == 1:
        return 0.0
    least = max(1 / rate for members in by_rack for rate in members)
    if count > 1:
        least = max(least, *(1 / uplink for uplink in uplinks))
    if count <= 2:  # the shares of racks do not matter
        return max(least, *((2 * len(members) - 2 + count - 1) / sum(members) for members in by_rack))

    def suffices(seconds: float) -> bool:
        room = [_rack_room(seconds, members, uplink) for members, uplink in zip(by_rack, uplinks, strict=True)]
        return min(room) >= 0 and sum(room) >= count - 2

    low, high = least, least
    while not suffices(high):
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _rack_room(seconds: float, members: Sequence[float], uplink: float) -> float:
    """Return (K - 2) times the largest share that a rack can take, from the loads in the docstring of this module.

    Summed up over the hosts, the loads of a rack of n hosts are 2 n - 1 + (K - 2) v.
    """
    return min(seconds * sum(members) - 2 * len(members) + 1, seconds * uplink - 1)


def _host_load(share: float, rack_share: float, hosts: int, racks: int) -> float:
    between = share * ((1 - rack_share) + (racks - 1) * rack_share)
    return 1 + (hosts - 2) * share + between


def _flat_uplink_loads(shares: BlockShares, racks: Sequence[int]) -> list[float]:
    """Return the load of each uplink where all hosts send each other their parts directly."""
    hosts, ends = shares.hosts[0], list(accumulate(racks))
    loads = []
    for size, end in zip(racks, ends, strict=True):
        share = sum(hosts[end - size : end])
        loads.append(size * (1 - share) + (len(hosts) - size) * share)
    return loads


def _rates_by_rack(links: JobLinks) -> list[tuple[float, ...]]:
    ends = accumulate(links.racks)
    return [links.nics[end - size : end] for size, end in zip(links.racks, ends, strict=True)]


def _normalise(values: Sequence[float]) -> tuple[float, ...]:
    """Return values as shares of their sum; equal ones if all are 0."""
    total = sum(values)
    return tuple(value / total for value in values) if total > 0 else (1 / len(values),) * len(values)
