"""-rebind_iter: find the learner that was slow in the last checks, and give it cores that nobody has."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.monitor.procfs import core_of, move_threads, parse_cpus, read_clock, read_load, show_cpus
from ddlrun.ddl.monitor.spare_cores import SpareCores
from ddlrun.ddl.monitor.straggler_detection import (
    CHECKS,
    MOVES,
    IterationStats,
    StragglerDetector,
    StragglerFinding,
    cause_of,
    median_and_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.event_log import EventLog
    from ddlrun.ddl.monitor.iteration_timer import Iteration
    from ddlrun.ddl.monitor.procfs import CpuLoad


class CoreRebinding:
    """Watches all learners and moves this one; made by all ranks together.

    All ranks of a host give out its cores by the same figures in the same order, so no two learners get the same one.
    `spares` are the CPUs that the plan kept and, after a semicolon, those that it gave to nobody.
    """

    def __init__(self, comm: Intracomm, hosts: Sequence[str], spares: str, journal: EventLog) -> None:
        self._rank, self._hosts, self._journal = comm.rank, hosts, journal
        self._watch = StragglerDetector()
        self._moves = 0
        self._load: tuple[float, CpuLoad] | None = None
        kept, _, idle = spares.partition(";")
        masks = _masks(comm)
        self._near = frozenset(masks)
        self._pool = SpareCores(masks, parse_cpus(kept), parse_cpus(idle), core_of)

    @property
    def width(self) -> int:
        """Return how many figures a row has."""
        return len(IterationStats._fields)

    def row(self, times: Sequence[Iteration]) -> IterationStats:
        """Return this learner's figures; /proc is read where the last check found it slow, else it costs too much."""
        middle, error = median_and_error([one.compute for one in times])
        inside = median_and_error([one.inside for one in times])[0]
        figures = IterationStats(middle, error, inside, moves=self._moves)
        if self._load is None:
            return figures
        since, before = self._load
        self._load = time.perf_counter(), read_load()
        wall = self._load[0] - since
        now = IterationStats(*figures)._replace(**_shares(before, self._load[1], wall))
        clock, most = read_clock(os.sched_getaffinity(0))
        return now._replace(clock=clock / most)

    def act(self, rows: NDArray[Any]) -> None:
        """Look at all learners' figures; report what is new and move if it is this one's turn."""
        figures = [IterationStats(*row) for row in rows.tolist()]
        for finding in self._watch.check(figures):
            if finding.what == "slow":
                self._slow(finding, figures[finding.rank])
            else:
                self._judged(finding)
        if not self._watch.suspects(self._rank):
            self._load = None
        elif self._load is None:
            self._load = time.perf_counter(), read_load()

    def _slow(self, found: StragglerFinding, figures: IterationStats) -> None:
        cause = cause_of(figures, found.score)
        offer = None
        if cause == "queue" and figures.moves < MOVES and found.rank in self._near:
            offer = self._pool.offer(found.rank)
        self._note(found, cause=cause)
        if found.rank != self._rank:
            return
        said = f"is slow, {found.score:.2f} times the median in {CHECKS} checks: "
        if cause != "queue":
            _say(self._here, f"{said}{cause}; it stays where it is")
            return
        said += f"others run on its CPUs {show_cpus(os.sched_getaffinity(0))}{_delay(figures)}; "
        if offer is not None:
            _say(self._here, said + self._move(offer.cpus, offer.words))
        elif figures.moves >= MOVES:
            _say(self._here, f"{said}it was moved {MOVES} times, and stays now")
        else:
            _say(self._here, f"{said}no core is free: ddlrun launch --reserve-cores keeps some")

    def _move(self, cpus: frozenset[int], words: str) -> str:
        """Move; return what was done."""
        before = frozenset(os.sched_getaffinity(0))
        try:
            threads = move_threads(cpus)
        except OSError as error:
            return f"it cannot be moved to {show_cpus(cpus)}: {error.strerror}"
        now = frozenset(os.sched_getaffinity(0))
        if now == before:
            return f"a cpuset leaves it none of {show_cpus(cpus)}"
        self._moves += 1
        return f"moved from CPUs {show_cpus(before)} to {show_cpus(now)}, {words}, with {threads} threads"

    def _judged(self, found: StragglerFinding) -> None:
        self._note(found)
        before = self._pool.give_back(found.rank) if found.what != "better" and found.rank in self._near else None
        if found.rank != self._rank:
            return
        said = f"takes {found.score:.2f} times the median after the move, {found.before:.2f} before"
        if before is None:
            _say(self._here, f"{said}; it stays on CPUs {show_cpus(os.sched_getaffinity(0))}")
        else:
            move_threads(before)
            _say(self._here, f"{said}: no gain, moved back to CPUs {show_cpus(os.sched_getaffinity(0))}")

    @property
    def _here(self) -> str:
        return f"rank {self._rank} on {self._hosts[self._rank]}"

    def _note(self, found: StragglerFinding, **more: object) -> None:
        if self._rank == 0:
            self._journal.write(
                event=found.what, rank=found.rank, host=self._hosts[found.rank], score=found.score, **more
            )


def _shares(before: CpuLoad, now: CpuLoad, wall: float) -> dict[str, float]:
    """Return what of `wall` seconds went where."""
    # max(nan, 0.0) is nan: what is not known stays so. Threads that ended took their time along.
    gone = [max(later - earlier, 0.0) for earlier, later in zip(before, now, strict=True)]
    on_cpu, delayed, delayed_all, throttled, switches = (one / wall for one in gone)
    return {
        "delayed": delayed_all, "idle": 1 - on_cpu - delayed, "throttled": throttled, "switches": switches,
    }  # fmt: skip


def _delay(figures: IterationStats) -> str:
    return (
        "" if math.isnan(figures.delayed) else f" (its threads wait {min(figures.delayed, 1):.0%} of the time for one)"
    )


def _masks(comm: Intracomm) -> dict[int, frozenset[int]]:
    """Return the CPUs of each rank of this host."""
    from mpi4py import MPI  # noqa: PLC0415 - it is loaded

    host = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    found = dict(host.allgather((comm.rank, frozenset(os.sched_getaffinity(0)))))
    host.Free()
    return found


def _say(here: str, said: str) -> None:
    sys.stderr.write(f"ddlrun.ddl.monitor: {here} {said}\n")
    sys.stderr.flush()
