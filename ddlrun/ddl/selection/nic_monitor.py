"""Measurements of the NICs during a job, and the choice between equal blocks and blocks sized by their rates."""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from ddlrun.allreduce_algorithms import can_weigh, size_blocks
from ddlrun.block_sizing import JobLinks
from ddlrun.ddl.group.operation import Limits
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.schedules.schedule import Message, ScheduleStep
from ddlrun.ddl.selection.autotune import LEAST_BYTES
from ddlrun.ddl.selection.unequal_links import degraded_hosts, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, MessageClass
    from ddlrun.ddl.group.engine import Engine
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.selection.unequal_links import HostGroups
    from ddlrun.ddl.transports.communicators import Communicator

# Bytes of the first exchange of a rank, and the most of a host.
FIRST, MOST = 64 * 1024, 8 * 1024 * 1024
# Seconds of an exchange that is long enough, for the fastest pair.
LONG = 0.1
# A host whose partner was faster in none of its rounds cannot be told from its partners.
MOST_ROUNDS = 5
# Rates within this share of the median are the same: measurements differ by less.
TOLERANCE = 0.15

Pairs = list[tuple[int, int]]


def pair_hosts(racks: Sequence[int]) -> list[Pairs]:
    """Return rounds in which hosts exchange data in pairs; each host meets several others.

    Pairs are in a rack, so that uplinks are no limit, unless a rack has less than three hosts.

    >>> pair_hosts([4])
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    """
    ends = list(accumulate(racks))
    groups = [range(end - size, end) for size, end in zip(racks, ends, strict=True)]
    if min(racks) < 3:
        groups = [range(ends[-1])]
    by_group = [_tournament(list(group)) for group in groups]
    count = min(max(map(len, by_group)), MOST_ROUNDS)
    return [[pair for rounds in by_group for pair in rounds[number % len(rounds)]] for number in range(count)]


def _tournament(members: list[int]) -> list[Pairs]:
    """Return the first rounds in which each member meets another one, by the circle method; -1 stands for nobody."""
    circle = members if len(members) % 2 == 0 else [*members, -1]
    rounds = []
    for _ in range(min(len(circle) - 1, MOST_ROUNDS)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([pair for pair in pairs if -1 not in pair])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def round_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """Return rates, with the median in place of those that are near it.

    >>> round_rates([99.0, 101.0, 51.0, 100.0])
    (99.5, 99.5, 51.0, 99.5)
    """
    median = statistics.median(rates)
    return tuple(median if abs(rate / median - 1) <= TOLERANCE else rate for rate in rates)


def measure_nics(engine: Engine, comm: Communicator, hosts: HostGroups) -> tuple[float, ...]:
    """Return the rate of each host's NIC in bytes/s; the same on all ranks. All ranks call it together.

    It takes up to 4 * MOST bytes per NIC in the first round, and 3 * MOST in each other one.

    Args:
        engine: Carries the messages; nothing is in progress.
        comm: The communicator of all ranks, in rank order.
        hosts: The hosts of the job.
    """
    best = [0.0] * len(hosts.ranks)
    size, most = FIRST, MOST // max(map(len, hosts.ranks))
    for pairs in pair_hosts(hosts.racks):
        partners = [list(zip(hosts.ranks[first], hosts.ranks[second], strict=False)) for first, second in pairs]
        exchange = partial(_exchange, engine, comm, partners)
        while min(exchange(size)) < LONG and size < most:
            size *= 2
        # The exchange before has used up what shapers let pass at once.
        fastest = map(min, exchange(size), exchange(size))
        for pair, seconds in zip(pairs, fastest, strict=True):
            flows = min(len(hosts.ranks[host]) for host in pair)
            for host in pair:
                best[host] = max(best[host], size * flows / seconds)
    return round_rates(best)


def _exchange(engine: Engine, comm: Communicator, partners: Sequence[Pairs], size: int) -> list[float]:
    """Exchange `size` bytes between partners, in both directions at once; return the seconds of each pair of hosts.

    `partners` has the pairs of ranks of each pair of hosts.
    """
    rank, memory = comm.rank, np.ones(2 * size, np.uint8)
    peer = next((sum(pair) - rank for pairs in partners for pair in pairs if rank in pair), None)
    comm.Barrier()
    start = time.perf_counter()
    if peer is not None:
        step = ScheduleStep((Message(peer, 0, size),), (Message(peer, size, 2 * size),), combine=False)
        operator = find_reduce_op("uint8", "sum")
        engine.wait(engine.start(memory, operator, lambda _, __: (step,), Limits(len(memory))))
    seconds = comm.allgather(time.perf_counter() - start)
    return [max(seconds[rank] for pair in pairs for rank in pair) for pairs in partners]


# Two hosts send each other the same in any case.
LEAST_HOSTS = 3


def choose_rates(measured: Sequence[float], used: Sequence[float]) -> tuple[float, ...]:
    """Return the rates to size blocks by; empty if all are equal.

    `used` has those that blocks are sized by so far. They stay while the measured ones are about the same, so that the
    order of additions does not change with the noise of measurements.

    >>> choose_rates((100.0, 100.0, 52.0), used=(98.0, 98.0, 50.0))
    (98.0, 98.0, 50.0)
    """
    if len(set(measured)) == 1:
        return ()
    return tuple(used) if used and _are_similar(measured, used) else tuple(measured)


def _are_similar(measured: Sequence[float], used: Sequence[float]) -> bool:
    scale = statistics.median(measured) / statistics.median(used)
    return all(abs(rate / (other * scale) - 1) <= TOLERANCE for rate, other in zip(measured, used, strict=True))


def can_size_blocks(message: MessageClass) -> bool:
    """Return True if a measured layout may be used: the array is large, and the reduction allows it."""
    return message.size >= LEAST_BYTES and can_weigh(message)


class NicMonitor:
    """Measures the NICs of a job from time to time, and sizes blocks by their rates while that is faster.

    All ranks make the same calls. They count the same bytes, so they measure in the same call. Rank 0 decides for all.

    Args:
        group: The group of all ranks.
        world: Its communicator, in rank order.
        hosts: The hosts of the job, which have the same number of ranks.
    """

    def __init__(self, group: Group, world: Communicator, hosts: HostGroups) -> None:
        self._engine, self._schedules, self._tuning = group.engine, group.schedules, group.selection.tuning
        self._world, self._hosts = world, hosts
        self._left = self._tuning.measure  # bytes that are reduced until the next measurement
        self._used: tuple[float, ...] = ()

    def is_due(self, message: MessageClass, _algorithm: AllreduceAlgorithm) -> bool:
        """Count the bytes of a reduction; return True if the NICs are to be measured now."""
        self._left -= message.size if can_size_blocks(message) else 0
        due = self._left <= 0
        if due:
            self._left = self._tuning.measure
        return due

    def update(self, is_adapted_faster: Callable[[float], bool]) -> None:
        """Measure the NICs, and give the schedules the layout that is faster. Nothing is in progress."""
        former = self._schedules.layout
        measured = measure_nics(self._engine, self._world, self._hosts)
        self._used, layout = self._world.bcast(self._plan(measured))
        if layout is not None:
            self._schedules.set_layout(layout)
            if not is_adapted_faster(0):
                self._used, layout = (), None
        self._schedules.set_layout(layout)
        if layout != former:
            self._report()

    def adapt(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> AllreduceAlgorithm:
        """Return the algorithm, with sized blocks while these are faster."""
        if self._schedules.layout is None or not can_size_blocks(message):
            return algorithm
        return size_blocks(algorithm, self._tuning, message.size)

    def _plan(self, measured: Sequence[float]) -> tuple[tuple[float, ...], HostLayout | None]:
        """Return the rates to size blocks by, and their layout; None if all NICs are equal."""
        rates = choose_rates(measured, self._used)
        return rates, layout_of(JobLinks(rates, self._hosts.racks), self._hosts) if rates else None

    def _report(self) -> None:
        names = self._world.gather(os.uname().nodename)
        if names is None:
            return
        sentences = ["blocks have equal sizes again"]
        if self._used:
            sentences = degraded_hosts(self._used, [names[ranks[0]] for ranks in self._hosts.ranks])
        sys.stderr.writelines(f"ddlrun.ddl: {sentence}\n" for sentence in sentences)
