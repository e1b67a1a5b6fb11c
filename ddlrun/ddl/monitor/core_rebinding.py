"""-rebind_iter: find the learner that was slow in the last checks, and move it to free cores.

These are cores that the plan reserved or left over; each is given to one learner only.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.monitor.procfs import core_of, move_threads, read_clock, read_load
from ddlrun.ddl.monitor.straggler_detection import (
    CHECKS,
    MAX_MOVES,
    CauseCode,
    IterationStats,
    StragglerDetector,
    StragglerFinding,
    Verdict,
    find_cause,
    median_and_error,
)
from ddlrun.ranges import parse_ranges, render_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.iteration_report import EventLog
    from ddlrun.ddl.monitor.meters import Iteration
    from ddlrun.ddl.monitor.procfs import CpuCore, CpuLoad
    from ddlrun.ddl.transports.communicators import Communicator


@dataclass(frozen=True, slots=True)
class SpareCoreOffer:
    """New CPUs for a learner, and their origin as text."""

    cpus: frozenset[int]
    origin: str


class SpareCores:
    """The cores of one host that no learner owns.

    Every rank of the host makes the same calls in the same order, so all get the same answers.

    Args:
        masks: The CPUs of each learner.
        reserved: The CPUs that the plan reserved (`--reserve-cores`).
        unassigned: The CPUs that the plan gave to no rank.
        core_of: Returns the core of a CPU.
    """

    def __init__(
        self,
        masks: Mapping[int, frozenset[int]],
        reserved: Iterable[int],
        unassigned: Iterable[int],
        core_of: Callable[[int], CpuCore],
    ) -> None:
        owned = frozenset[int]().union(*masks.values())
        self._masks, self._core_of = dict(masks), core_of
        self._free = dict.fromkeys(_free_cores(unassigned, owned, core_of), False)
        """The free cores, and whether the plan reserved them."""
        self._free |= dict.fromkeys(_free_cores(reserved, owned, core_of), True)
        self._loans: dict[int, tuple[frozenset[int], dict[CpuCore, bool]]] = {}
        """The CPUs that a learner had before, and the cores that it took."""

    def offer(self, rank: int) -> SpareCoreOffer | None:
        """Take cores for a learner from the nearest group that has one: as many as it has, or what there is.

        Returns None if there is no free core.
        """
        cores = {self._core_of(cpu) for cpu in self._masks[rank]}
        nodes, packages = {core.node for core in cores}, {core.package for core in cores}
        reserved = [core for core, is_reserved in self._free.items() if is_reserved]
        in_package = [core for core in reserved if core.package in packages]
        in_node = [core for core in in_package if core.node in nodes]
        unassigned = [core for core in self._free if core not in reserved and core.package in packages]
        for group, origin in (
            (in_node, "kept by the plan"),
            (in_package, "kept by the plan, on another NUMA node of its package"),
            (sorted(unassigned, key=lambda core: core.node not in nodes), "of its package that no learner owns"),
            (reserved, "kept by the plan, in another package: its memory stays behind"),
        ):
            if group:
                return self._take(rank, group[: len(cores)], origin, enough=len(group) >= len(cores))
        return None

    def give_back(self, rank: int) -> frozenset[int]:
        """Return the CPUs that a learner had before its last offer; the cores of the offer are free again."""
        self._masks[rank], cores = self._loans.pop(rank)
        self._free |= cores
        return self._masks[rank]

    def _take(self, rank: int, cores: Sequence[CpuCore], origin: str, *, enough: bool) -> SpareCoreOffer:
        """Give cores to a learner: instead of its own if they are enough and reserved, else beside its own."""
        before, taken = self._masks[rank], {core: self._free.pop(core) for core in cores}
        self._loans[rank] = before, taken
        new = frozenset[int]().union(*(core.cpus for core in cores))
        self._masks[rank] = new if enough and any(taken.values()) else new | before
        return SpareCoreOffer(self._masks[rank], origin)


def _free_cores(cpus: Iterable[int], owned: frozenset[int], core_of: Callable[[int], CpuCore]) -> list[CpuCore]:
    """Return the cores of CPUs, cut to these CPUs, of which no learner owns any."""
    allowed = frozenset(cpus)
    cores = dict.fromkeys(core_of(cpu) for cpu in sorted(allowed))
    return [replace(core, cpus=core.cpus & allowed) for core in cores if not core.cpus & owned]


class CoreRebinding:
    """Watches all learners and moves this one. All ranks create it together.

    All ranks of a host assign its cores by the same figures in the same order, so no two learners get the same core.
    `spares` has the CPUs that the plan reserved and, after a semicolon, those that it gave to no rank.
    """

    def __init__(self, comm: Communicator, hosts: Sequence[str], spares: str, log: EventLog) -> None:
        self._rank, self._hosts, self._log = comm.rank, hosts, log
        self._detector = StragglerDetector()
        self._moves = 0
        self._last_load: tuple[float, CpuLoad] | None = None
        """The load at the last check, and when; None while this learner is not suspected."""
        reserved, _, unassigned = spares.partition(";")
        host = comm.split_hosts()
        masks = dict(host.allgather((comm.rank, frozenset(os.sched_getaffinity(0)))))
        host.Free()
        self._on_my_host = frozenset(masks)
        self._spare_cores = SpareCores(masks, parse_ranges(reserved), parse_ranges(unassigned), core_of)

    @property
    def width(self) -> int:
        """The number of figures in a row."""
        return len(fields(IterationStats))

    def row(self, times: Sequence[Iteration]) -> tuple[float, ...]:
        """Return this learner's figures. /proc is read only if the last check suspected it, because that has a cost."""
        median, error = median_and_error([iteration.compute for iteration in times])
        inside = median_and_error([iteration.inside for iteration in times])[0]
        stats = IterationStats(compute=median, error=error, inside=inside, moves=self._moves)
        if self._last_load is None:
            return astuple(stats)
        since, before = self._last_load
        now, load = time.perf_counter(), read_load()
        self._last_load = now, load
        clock = read_clock(os.sched_getaffinity(0))
        return astuple(replace(stats, **_shares(before, load, now - since), clock=clock))

    def act(self, rows: NDArray[Any]) -> None:
        """Check the figures of all learners; report new findings, and move if one is about this learner."""
        stats = [IterationStats(*row) for row in rows.tolist()]
        for finding in self._detector.check(stats):
            if finding.verdict is Verdict.SLOW:
                self._handle_slow(finding, stats[finding.rank])
            else:
                self._handle_judgement(finding)
        if not self._detector.suspects(self._rank):
            self._last_load = None
        elif self._last_load is None:
            self._last_load = time.perf_counter(), read_load()

    def _handle_slow(self, finding: StragglerFinding, stats: IterationStats) -> None:
        cause = find_cause(stats, finding.score)
        curable = cause.code is CauseCode.WAITS_FOR_CPU
        may_move = curable and stats.moves < MAX_MOVES and finding.rank in self._on_my_host
        # Every rank of the host takes the cores, so that all know which are free.
        offer = self._spare_cores.offer(finding.rank) if may_move else None
        self._log_finding(finding, cause=cause.text)
        if finding.rank != self._rank:
            return
        start = f"is slow, {finding.score:.2f} times the median in {CHECKS} checks"
        if curable:
            cpus = render_ranges(os.sched_getaffinity(0))
            self._report(f"{start}: others run on its CPUs {cpus}{_delay(stats)}; {self._react(stats, offer)}")
        else:
            self._report(f"{start}: {cause.text}; it stays where it is")

    def _react(self, stats: IterationStats, offer: SpareCoreOffer | None) -> str:
        """Move this learner if there is an offer; return what was done."""
        if offer is not None:
            return self._move(offer)
        if stats.moves >= MAX_MOVES:
            return f"it was moved {MAX_MOVES} times, and stays now"
        return "no core is free: ddlrun launch --reserve-cores keeps some"

    def _move(self, offer: SpareCoreOffer) -> str:
        before = frozenset(os.sched_getaffinity(0))
        try:
            threads = move_threads(offer.cpus)
        except OSError as error:
            return f"it cannot be moved to {render_ranges(offer.cpus)}: {error.strerror}"
        now = frozenset(os.sched_getaffinity(0))
        if now == before:
            return f"a cpuset leaves it none of {render_ranges(offer.cpus)}"
        self._moves += 1
        return (
            f"moved from CPUs {render_ranges(before)} to {render_ranges(now)}, {offer.origin}, with {threads} threads"
        )

    def _handle_judgement(self, finding: StragglerFinding) -> None:
        """Report whether a move helped; move back if it did not."""
        self._log_finding(finding)
        moves_back = finding.verdict is Verdict.NOT_BETTER and finding.rank in self._on_my_host
        before = self._spare_cores.give_back(finding.rank) if moves_back else None
        if finding.rank != self._rank:
            return
        times = f"takes {finding.score:.2f} times the median after the move, {finding.before:.2f} before"
        if before is None:
            self._report(f"{times}; it stays on CPUs {render_ranges(os.sched_getaffinity(0))}")
        else:
            move_threads(before)
            self._report(f"{times}: no gain, moved back to CPUs {render_ranges(os.sched_getaffinity(0))}")

    def _log_finding(self, finding: StragglerFinding, cause: str | None = None) -> None:
        if self._rank == 0:
            event: dict[str, Any] = {
                "event": finding.verdict.value,
                "rank": finding.rank,
                "host": self._hosts[finding.rank],
                "score": finding.score,
            }
            if cause is not None:
                event["cause"] = cause
            self._log.write(event)

    def _report(self, text: str) -> None:
        sys.stderr.write(f"ddlrun.ddl.monitor: rank {self._rank} on {self._hosts[self._rank]} {text}\n")
        sys.stderr.flush()


def _shares(before: CpuLoad, now: CpuLoad, wall: float) -> dict[str, float]:
    """Return the shares of `wall` seconds, as fields of IterationStats."""
    # Threads that ended took their time along, so a sum may fall. max(nan, 0.0) is nan: unknown values stay unknown.
    growth = [max(later - earlier, 0.0) for earlier, later in zip(astuple(before), astuple(now), strict=True)]
    on_cpu, delayed, delayed_all, throttled, switches = (amount / wall for amount in growth)
    idle = 1 - on_cpu - delayed
    return {"delayed": delayed_all, "idle": idle, "throttled": throttled, "switches": switches}


def _delay(stats: IterationStats) -> str:
    if math.isnan(stats.delayed):
        return ""
    return f" (its threads wait {min(stats.delayed, 1):.0%} of the time for one)"
