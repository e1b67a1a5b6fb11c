"""Comparison of the times at which hosts begin reductions, and the choice of the host that is taken last."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import WEIGHTED, wait_for_late_host
from ddlrun.ddl.selection.autotune import LEAST_BYTES, Monitor
from ddlrun.ddl.selection.nic_monitor import LEAST_HOSTS as LEAST_MEASURED
from ddlrun.ddl.selection.nic_monitor import NicMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.allreduce_algorithms import AllreduceAlgorithm, MessageClass
    from ddlrun.ddl.group.group import Group
    from ddlrun.ddl.selection.unequal_links import HostGroups
    from ddlrun.ddl.transports.communicators import Communicator

# With fewer hosts less than a third of the time after the arrival can be saved.
LEAST_HOSTS = 4
# Reductions between two comparisons.
INTERVAL = 64
# A host is late if it is the last one in this share of the reductions, each time by a share of the reduction's time.
OFTEN, LEAST_DELAY = 0.75, 0.25
# Reductions that begin while nothing is in progress: with fewer of them nothing is known.
FEWEST = 4


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a reduction on a rank.

    own: seconds since the reduction before, in which the rank waited for no other; 0 if that was still in progress.
    former: seconds of the reduction before.
    """

    own: float
    former: float


@dataclass(frozen=True, slots=True)
class LateHost:
    """A host, as its place in the dimension between hosts, and the seconds by which it is the last one.

    reduction: the seconds of a reduction after all hosts have begun.
    """

    place: int
    delay: float
    reduction: float


def find_late_host(begins: Sequence[Sequence[Begin]]) -> LateHost | None:
    """Return the host that begins most reductions clearly after all others; None if there is none.

    Args:
        begins: For each host the same number of reductions.

    >>> find_late_host([[Begin(own, 0.2)] * FEWEST for own in (0.1, 0.5, 0.2)])
    LateHost(place=1, delay=0.3, reduction=0.2)
    """
    delays, formers, count = defaultdict[int, list[float]](list), list[float](), 0
    for reduction in zip(*begins, strict=True):
        own = sorted((begin.own, place) for place, begin in enumerate(reduction))
        if own[0][0] <= 0:
            continue
        count += 1
        (second, _), (last, place) = own[-2:]
        formers.append(min(begin.former for begin in reduction))
        if last - second >= LEAST_DELAY * formers[-1]:
            delays[place].append(last - second)
    for place, of_host in delays.items():
        if len(of_host) >= OFTEN * count and count >= FEWEST:
            return LateHost(place, round(statistics.median(of_host), 6), round(statistics.median(formers), 6))
    return None


def can_wait(message: MessageClass, algorithm: AllreduceAlgorithm) -> bool:
    """Return True if a reduction may take a late host last: it is large, in float32 on the wire and of equal blocks."""
    large = message.whole and message.size >= LEAST_BYTES and not message.wire
    return large and algorithm.method == "chunks" and algorithm.algorithms != WEIGHTED


class LateHostMonitor:
    """Finds the host that begins reductions late, and lets the schedules take it last while that is faster.

    All ranks make the same calls. They count the same reductions, so they compare in the same call, and from the same
    figures they find the same host.

    Args:
        group: The group of all ranks.
        world: Its communicator.
        host: The place of this rank's host in the dimension between hosts.
    """

    def __init__(self, group: Group, world: Communicator, host: int) -> None:
        self._engine, self._schedules = group.engine, group.schedules
        self._world, self._host = world, host
        self._begins: list[Begin] = []
        self._began = time.perf_counter()
        self._comparisons = 0
        self._faster = set[int]()
        """The hosts for which a trial has shown that taking them last is faster."""
        self._next_trial: dict[int, int] = {}
        """Host -> the comparison from which on it is tried again: noise may have spoiled the last trial."""

    def is_due(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> bool:
        """Note the start of a reduction; return True if the hosts are to be compared now."""
        if self._schedules.layout is not None or not can_wait(message, algorithm):
            return False
        engine = self._engine
        now, begin = time.perf_counter(), Begin(0, 0)
        if engine.is_idle:
            begin = Begin(now - engine.idle_since, engine.idle_since - self._began)
            self._began = now
        self._begins.append(begin)
        return len(self._begins) == INTERVAL

    def update(self, is_adapted_faster: Callable[[float], bool]) -> None:
        """Compare the hosts, and let the schedules take the late one last if that is faster. Nothing is in progress."""
        schedules = self._schedules
        late, former = self._compare(), schedules.late_host
        self._comparisons += 1
        place = None if late is None else late.place
        if late is not None and place not in self._faster and self._comparisons >= self._next_trial.get(late.place, 0):
            schedules.set_late_host(late.place)
            # With a longer delay the others have finished what they can, and the trials only take longer.
            delay = min(late.delay, late.reduction)
            if is_adapted_faster(delay if self._host == late.place else 0):
                self._faster.add(late.place)
            self._next_trial[late.place] = 2 * self._comparisons
        chosen = place if place in self._faster else None
        schedules.set_late_host(chosen)
        if chosen != former:
            self._report(late if chosen is not None else None)
        self._began = time.perf_counter()

    def adapt(self, message: MessageClass, algorithm: AllreduceAlgorithm) -> AllreduceAlgorithm:
        """Return the algorithm, or the one that takes the late host last while there is one."""
        waits = self._schedules.late_host is not None and can_wait(message, algorithm)
        return wait_for_late_host(message.size) if waits else algorithm

    def _compare(self) -> LateHost | None:
        """Return the late host. A host begins with its last rank."""
        rows = self._world.allgather((self._host, self._begins))
        self._begins = []
        by_host = defaultdict[int, list[list[Begin]]](list)
        for host, begins in rows:
            by_host[host].append(begins)
        last = partial(max, key=attrgetter("own", "former"))
        return find_late_host([list(map(last, zip(*by_host[host], strict=True))) for host in sorted(by_host)])

    def _report(self, late: LateHost | None) -> None:
        names = self._world.gather((self._host, os.uname().nodename))
        if names is None:
            return
        text = "reductions wait for all hosts again"
        if late is not None:
            text = f"{dict(names)[late.place]} begins reductions {late.delay:.3f} s after the others: it is taken last"
        sys.stderr.write(f"ddlrun.ddl: {text}\n")


def make_monitors(group: Group, world: Communicator, hosts: HostGroups, place: int | None) -> list[Monitor]:
    """Return the monitors of a group with unknown rates of links; none if its hosts are few or unequal.

    Args:
        group: The group.
        world: Its communicator, in rank order.
        hosts: Its hosts.
        place: The place of this rank's host in the dimension between hosts, None if there is none.
    """
    monitors = list[Monitor]()
    if group.schedules.layout is None and group.selection.tuning.measure and len(hosts.ranks) >= LEAST_MEASURED:
        monitors.append(NicMonitor(group, world, hosts))
        if place is not None and len(hosts.ranks) >= LEAST_HOSTS:
            monitors.append(LateHostMonitor(group, world, place))
    return monitors
