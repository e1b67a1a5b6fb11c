"""-dump_iter: a table of dimensions, and who keeps the others waiting."""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.ddl.monitor.traffic_meter import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.monitor.event_log import EventLog
    from ddlrun.ddl.monitor.iteration_timer import Iteration
    from ddlrun.ddl.monitor.traffic_meter import TrafficMeter

OWN = 5  # figures before those of the dimensions


class DimensionTraffic(NamedTuple):
    """One dimension in one iteration: letters, learners, algorithm, bytes that a learner sends, busy seconds."""

    dimension: str
    learners: int
    algorithm: str
    sent: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.sent / self.seconds if self.seconds else 0.0


class IterationReport:
    """Reports on rank 0 what all learners tell; `hosts` has the name of each rank's."""

    def __init__(self, grid: Grid, mode: str, hosts: Sequence[str], meter: TrafficMeter, journal: EventLog) -> None:
        self._grid, self._mode, self._hosts, self._meter, self._journal = grid, mode, hosts, meter, journal
        self._until = 1  # the first iteration counts in no report: it has the start in it
        self._names: list[str] = []

    @property
    def width(self) -> int:
        """Return how many figures a row has."""
        return OWN + 6 * len(self._meter.sent) + 2

    def row(self, times: Sequence[Iteration]) -> list[float]:
        """Return iterations, the medians of compute, inside and both, jitter; then bytes and seconds by dimension.

        Last stand seconds since 1970: begin and end of the last iteration, then of each phase that it had, else nan.
        """
        compute, inside = [one.compute for one in times], [one.inside for one in times]
        mean = sum(compute) / len(compute)
        deviation = math.sqrt(
            sum((one - mean) ** 2 for one in compute) / len(compute)
        )  # statistics' is exact, and slow
        jitter = deviation / mean if mean else 0.0
        self._names = [" ".join(filter(None, pair)) for pair in zip(self._meter.names, self._meter.wires, strict=True)]
        whole = statistics.median(one.compute + one.inside for one in times)
        own = [float(len(times)), statistics.median(compute), statistics.median(inside), whole, jitter]
        clock, last = time.time() - time.perf_counter(), times[-1]
        began = last.ended - last.compute - last.inside
        spans = [clock + at for at in (began, last.ended, *self._meter.begins, *self._meter.ends)]
        return [*own, *map(float, self._meter.sent), *self._meter.seconds, *spans]

    def act(self, rows: NDArray[Any]) -> None:
        """Print and keep what rank 0 has of all."""
        first, self._until = self._until + 1, self._until + int(rows[0, 0])
        if self._grid.rank:
            return
        compute, inside, whole, jitter = rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4]
        lines = list(self._lines(rows))
        wait = inside - inside.min()
        worst, middle = int(jitter.argmax()), float(np.median(jitter))
        times = [float(np.median(one)) * 1e3 for one in (whole, compute, inside, wait)]
        head = (
            f"iterations {first} to {self._until}, {self._grid.topology}, mode {self._mode}: {times[0]:.2f} ms each "
            f"({times[1]:.2f} computing, {times[2]:.2f} reducing, of it {times[3]:.2f} waiting for others)"
        )
        foot = f"most jitter: rank {worst} on {self._hosts[worst]}, {jitter[worst]:.1%} of its computing time"
        sys.stderr.write(render_table(head, lines, f"{foot}; half of all have at most {middle:.1%}"))
        self._journal.write(
            event="iterations", first=first, last=self._until, topology=str(self._grid.topology), mode=self._mode,
            seconds=float(np.median(whole)), compute=compute.tolist(), reduce=inside.tolist(), jitter=jitter.tolist(),
            most_jitter={"rank": worst, "host": self._hosts[worst], "share": float(jitter[worst])},
            dimensions=[{**line._asdict(), "rate": line.rate} for line in lines], **self._spans(rows),
        )  # fmt: skip

    def _spans(self, rows: NDArray[Any]) -> dict[str, object]:
        """Return when the last iteration and its phases began and ended on each rank, in seconds from the first begin.

        Each by its host's clock; null where a rank has no such phase.
        """
        parts = len(self._names)
        spans = rows[:, OWN + 2 * parts :]
        start = float(spans[:, 0].min())

        def told(place: int) -> list[float | None]:
            return [None if math.isnan(one) else round(one - start, 6) for one in spans[:, place].tolist()]

        axes = [*self._grid.axes, self._grid.axes]
        phases = []
        for place in range(2 * parts):
            whole = place >= 2 * (parts - 1)
            if not np.isnan(spans[:, 2 + place]).all():
                phases.append({
                    "dimension": axes[place // 2], "phase": "allreduce" if whole else PHASES[place % 2],
                    "begin": told(2 + place), "end": told(2 + 2 * parts + place),
                })  # fmt: skip
        return {"start": start, "begin": told(0), "end": told(1), "phases": phases}

    def _lines(self, rows: NDArray[Any]) -> Iterator[DimensionTraffic]:
        """Yield what the last iteration did: of bytes and seconds the median over learners."""
        parts = len(self._names)
        axes = [*self._grid.axes, self._grid.axes]
        learners = [*self._grid.topology.dims, self._grid.size]
        for number, name in enumerate(self._names):
            sent, seconds = (float(np.median(rows[:, OWN + number + at])) for at in (0, parts))
            if sent or seconds:
                yield DimensionTraffic(axes[number], learners[number], name, sent, seconds)


def render_table(head: str, lines: Sequence[DimensionTraffic], foot: str) -> str:
    """Write a report, one line a dimension."""
    cells = [("dimension", "learners", "algorithm", "sent", "busy", "rate")]
    cells += [
        (line.dimension, str(line.learners), line.algorithm, f"{line.sent / 1e6:.2f} MB",
         f"{line.seconds * 1e3:.2f} ms", f"{line.rate / 1e6:.1f} MB/s")
        for line in lines
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    text = (
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  "
        + "  ".join(cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True))
        for row in cells
    )
    return "\n".join((f"ddlrun.ddl: {head}", *(text if lines else ()), f"  {foot}", ""))
