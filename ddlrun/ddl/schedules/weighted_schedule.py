"""Schedules of an allreduce over hosts and racks that may be unequal, with blocks sized by `block_sizing`.

The buffer is cut into strips, such that in every host each strip has a single collector among the host's ranks. Each
strip is cut into a block per rack, and each of these, in each rack in its own way, into a block per host. The steps:

1. Ranks of a host send each other their strips.
2. Hosts of a rack send each other the blocks of every strip.
3. Racks send each other their blocks.

As in `schedule`, the allgather takes the mirrored steps.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.block_sizing import cut
from ddlrun.ddl.schedules.schedule import Message, ScheduleStep, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddlrun.block_sizing import BlockShares

Range = tuple[int, int]


class HostLayout(NamedTuple):
    """The ranks of each host, rack by rack, and the shares of racks and hosts."""

    hosts: tuple[tuple[int, ...], ...]
    shares: BlockShares

    def racks(self) -> list[range]:
        """Return the numbers of the hosts of each rack."""
        ends = list(accumulate(map(len, self.shares.hosts)))
        return [range(start, end) for start, end in pairwise([0, *ends])]

    def host_of(self, rank: int) -> int:
        """Return the number of the host of a rank."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)


class Strip(NamedTuple):
    """A strip: its rank in each host, and in each rack the bounds of the hosts' blocks, for each rack's block.

    bounds[rack][block] are the bounds between the hosts of `rack` in the block of the rack number `block`.
    """

    collectors: tuple[int, ...]
    bounds: tuple[tuple[tuple[int, ...], ...], ...]


def reduce_scatter(
    layout: HostLayout, rank: int, count: int, *, division: bool = False, wires: Sequence[str] = ("", "", "")
) -> Steps:
    """Return the steps of a rank that leave every block with a single rank, as the sum over all ranks.

    Args:
        layout: The hosts; the same for all ranks.
        rank: The rank whose steps to return.
        count: Elements of the buffer.
        division: Whether the sums are divided by the number of ranks.
        wires: The 16-bit types that float32 is sent as inside hosts, inside racks and between racks; "": float32.
    """
    view = _View(layout, rank, _strips(layout, count))
    phases = [
        _step(view.to_local_ranks(), view.from_local_ranks(), wires[0]),
        _step(view.to_hosts(), view.from_hosts(), wires[1]),
        _step(view.to_racks(), view.from_racks(), wires[2]),
    ]
    last = 2 if len(layout.racks()) > 1 else 1 if len(layout.hosts) > 1 else 0
    divisor = sum(map(len, layout.hosts)) if division else 1
    settled = next(filter(None, wires), "")
    phases[last] = phases[last]._replace(divisor=divisor, settled=settled)
    return [step for step in phases if step.sends or step.receives]


def _strips(layout: HostLayout, count: int) -> list[Strip]:
    """Cut `count` elements where the ranks of any host change."""
    sizes = {len(ranks) for ranks in layout.hosts}
    places = sorted({Fraction(part, size) for size in sizes for part in range(size)})
    bounds = [*(int(count * place) for place in places), count]
    strips = []
    for place, low, high in zip(places, bounds, bounds[1:], strict=False):
        blocks = list(pairwise(cut(low, high, layout.shares.racks)))
        strips.append(
            Strip(
                collectors=tuple(ranks[int(place * len(ranks))] for ranks in layout.hosts),
                bounds=tuple(tuple(tuple(cut(*block, hosts)) for block in blocks) for hosts in layout.shares.hosts),
            )
        )
    return strips


class _View:
    """The messages of a rank. Those of two ranks have the same order on both."""

    def __init__(self, layout: HostLayout, rank: int, strips: Sequence[Strip]) -> None:
        self.rank, self.host, self.racks = rank, layout.host_of(rank), layout.racks()
        self.ranks = layout.hosts[self.host]
        self.rack = next(number for number, hosts in enumerate(self.racks) if self.host in hosts)
        self.place = self.host - self.racks[self.rack].start
        self.strips = strips
        self.mine = [strip for strip in strips if strip.collectors[self.host] == rank]

    def to_local_ranks(self) -> Iterator[Message]:
        for peer in self.ranks:
            if peer != self.rank:
                yield Message(peer, *self._collected(peer))

    def from_local_ranks(self) -> Iterator[Message]:
        for peer in self.ranks:
            if peer != self.rank:
                yield Message(peer, *self._collected(self.rank))

    def to_hosts(self) -> Iterator[Message]:
        for strip in self.mine:
            for bounds in strip.bounds[self.rack]:
                for host, block in zip(self.racks[self.rack], pairwise(bounds), strict=True):
                    if host != self.host:
                        yield Message(strip.collectors[host], *block)

    def from_hosts(self) -> Iterator[Message]:
        for host in self.racks[self.rack]:
            for strip in self.mine if host != self.host else ():
                for bounds in strip.bounds[self.rack]:
                    yield Message(strip.collectors[host], *self._own(bounds))

    def to_racks(self) -> Iterator[Message]:
        for strip in self.mine:
            for rack in range(len(self.racks)):
                if rack != self.rack:
                    for low, high in _shared_parts(strip, rack, self._own(strip.bounds[self.rack][rack])):
                        yield Message(self._holder(strip, rack, rack, low), low, high)

    def from_racks(self) -> Iterator[Message]:
        for rack in range(len(self.racks)):
            for strip in self.mine if rack != self.rack else ():
                for low, high in _shared_parts(strip, self.rack, self._own(strip.bounds[self.rack][self.rack])):
                    yield Message(self._holder(strip, rack, self.rack, low), low, high)

    def _collected(self, rank: int) -> Range:
        """Return the elements of all strips that a rank of this host collects; they are adjacent."""
        bounds = [strip.bounds[0] for strip in self.strips if strip.collectors[self.host] == rank]
        return bounds[0][0][0], bounds[-1][-1][-1]

    def _own(self, bounds: Sequence[int]) -> Range:
        """Return this host's block between the bounds of its rack."""
        return bounds[self.place], bounds[self.place + 1]

    def _holder(self, strip: Strip, rack: int, block: int, element: int) -> int:
        """Return the rank that has the sum of a rack for an element of the block of the rack number `block`."""
        place = bisect_right(strip.bounds[rack][block], element) - 1
        return strip.collectors[self.racks[rack][place]]


def _shared_parts(strip: Strip, block: int, part: Range) -> Iterator[Range]:
    """Cut a part of a rack's block wherever the holders change in any rack."""
    low, high = part
    if low == high:
        return iter(())
    inner = {bound for bounds in strip.bounds for bound in bounds[block] if low < bound < high}
    return pairwise([low, *sorted(inner), high])


def _step(sends: Iterator[Message], receives: Iterator[Message], wire: str) -> ScheduleStep:
    """Return a step without empty messages; the elements of those received last are complete with them."""
    sent, received = (tuple(m for m in messages if m.low < m.high) for messages in (sends, receives))
    return ScheduleStep(sent, received, wire=wire, closing=len({message[1:] for message in received}))
