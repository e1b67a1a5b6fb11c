"""Measurements of the NICs during a job, and the choice between equal blocks and blocks sized by their rates."""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddlrun.allreduce_algorithms import NOT_WEIGHTED
from ddlrun.block_sizing import JobLinks
from ddlrun.ddl.nic_rates import TOLERANCE, measure_nics
from ddlrun.ddl.unequal_links import degraded_hosts, layout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, MessageClass
    from ddlrun.ddl.autotune import Measure
    from ddlrun.ddl.communicators import Communicator
    from ddlrun.ddl.engine import Engine
    from ddlrun.ddl.unequal_links import HostGroups
    from ddlrun.ddl.weighted_schedule import HostLayout

# Two hosts send each other the same in any case.
LEAST_HOSTS = 3
# Bytes of the smallest reduction that may have sized blocks: below, the number of messages matters more.
LEAST_BYTES = 1 << 20
# Trial reductions of each algorithm, after one that opens connections, and the bytes of the largest one.
TURNS, LARGEST_TRIAL = 5, 8 << 20
# The share of the time that sized blocks must save at least.
GAIN = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The algorithms with equal and with sized blocks.

    measure: runs an algorithm and returns its seconds, the same on all ranks.
    """

    equal: AllreduceAlgorithm
    sized: AllreduceAlgorithm
    measure: Measure


class Schedules(Protocol):
    """Schedules with blocks of equal sizes, or sized by the links."""

    @property
    def layout(self) -> HostLayout | None:
        """The layout of unequal links; None: blocks have equal sizes."""

    def set_layout(self, layout: HostLayout | None) -> None:
        """Use another layout from the next reduction on. All ranks call it together."""


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


def is_clearly_faster(sized: Sequence[float], equal: Sequence[float]) -> bool:
    """Return True if sized blocks were faster than equal ones in each turn, and by GAIN in the median.

    >>> is_clearly_faster([2.0, 2.1, 2.0], equal=[3.0, 3.1, 2.9]), is_clearly_faster([2.0, 2.1, 2.0], [2.1, 2.2, 2.1])
    (True, False)
    """
    wins = all(seconds < other for seconds, other in zip(sized, equal, strict=True))
    return wins and statistics.median(sized) <= (1 - GAIN) * statistics.median(equal)


def is_faster(comparison: Comparison) -> bool:
    """Run reductions with equal and with sized blocks in turn; return True if those with sized blocks are faster."""
    times: dict[AllreduceAlgorithm, list[float]] = {comparison.equal: [], comparison.sized: []}
    for _ in range(1 + TURNS):
        for algorithm, seconds in times.items():
            seconds.append(comparison.measure(algorithm))
    return is_clearly_faster(times[comparison.sized][1:], times[comparison.equal][1:])


def can_size_blocks(message: MessageClass) -> bool:
    """Return True if a measured layout may be used: the array is large, and its wire allows it."""
    return message.whole and message.size >= LEAST_BYTES and not message.wire.startswith(NOT_WEIGHTED)


def make_monitor(world: Communicator, hosts: HostGroups | None, interval: int) -> NicMonitor | None:
    """Return a monitor, or None if there is nothing to measure."""
    if hosts is None or len(hosts.ranks) < LEAST_HOSTS or not interval:
        return None
    return NicMonitor(world, hosts, interval)


class NicMonitor:
    """Measures the NICs of a job from time to time, and sizes blocks by their rates while that is faster.

    All ranks make the same calls. They count the same bytes, so they measure in the same call. Rank 0 decides for all.

    Args:
        world: The communicator of all ranks, in rank order.
        hosts: The hosts of the job, which have the same number of ranks.
        interval: Bytes that are reduced between two measurements.
    """

    def __init__(self, world: Communicator, hosts: HostGroups, interval: int) -> None:
        self._world, self._hosts, self._interval = world, hosts, interval
        self._left = interval
        self._used: tuple[float, ...] = ()

    def is_due(self, nbytes: int) -> bool:
        """Count the bytes of a reduction; return True if the NICs are to be measured now."""
        self._left -= nbytes
        due = self._left <= 0
        if due:
            self._left = self._interval
        return due

    def update(self, engine: Engine, schedules: Schedules, comparison: Comparison) -> None:
        """Measure the NICs, and give the schedules the layout that is faster. Nothing is in progress."""
        former = schedules.layout
        self._used, layout = self._world.bcast(self._plan(measure_nics(engine, self._world, self._hosts)))
        if layout is not None:
            schedules.set_layout(layout)
            if not self._world.bcast(is_faster(comparison)):
                self._used, layout = (), None
        schedules.set_layout(layout)
        if layout != former:
            self._report()

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
