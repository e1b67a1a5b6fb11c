"""Measurements of the NICs during a job, and the choice between equal blocks and blocks sized by their rates."""

from __future__ import annotations

import os
import statistics
import sys
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import can_weigh, size_blocks
from ddlrun.block_sizing import JobLinks
from ddlrun.ddl.selection.nic_rates import TOLERANCE, measure_nics
from ddlrun.ddl.selection.trials import LEAST_BYTES, is_faster
from ddlrun.ddl.selection.unequal_links import degraded_hosts, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, MessageClass
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.selection.trials import Comparison
    from ddlrun.ddl.selection.unequal_links import HostGroups
    from ddlrun.ddl.transports.communicators import Communicator

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

    def update(self, make_comparison: Callable[[float], Comparison]) -> None:
        """Measure the NICs, and give the schedules the layout that is faster. Nothing is in progress."""
        former = self._schedules.layout
        measured = measure_nics(self._engine, self._world, self._hosts)
        self._used, layout = self._world.bcast(self._plan(measured))
        if layout is not None:
            self._schedules.set_layout(layout)
            if not self._world.bcast(is_faster(make_comparison(0))):
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
