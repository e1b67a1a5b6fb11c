"""-dump_iter: a table of the dimensions, and the learner with the most jitter; the event log in the run folder."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.monitor.meters import PHASES, DimensionTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.dimensions import Grid
    from ddlrun.ddl.monitor.meters import Iteration, TrafficMeter

# The event log of rank 0 in the run folder: one JSON object per line.
NAME = "ddl.jsonl"


class EventLog:
    """Appends events to a file in `folder`. Without a folder, or if the file cannot be written, events are dropped."""

    def __init__(self, folder: str = "") -> None:
        self._path = os.path.join(folder, NAME) if folder and os.path.isdir(folder) else ""

    def write(self, event: dict[str, Any]) -> None:
        """Append an event, with the time in seconds since 1970."""
        if self._path:
            with (
                suppress(OSError),
                open(self._path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            ):
                file.write(json.dumps({"time": time.time(), **event}) + "\n")


# Figures of a row before those of the dimensions: iterations, compute, inside, both, jitter.
OWN = 5


class IterationReport:
    """Reports the figures of all learners on rank 0; `hosts` has the name of each rank's host."""

    def __init__(self, grid: Grid, mode: str, hosts: Sequence[str], meter: TrafficMeter, log: EventLog) -> None:
        self._grid, self._mode, self._hosts, self._meter, self._log = grid, mode, hosts, meter, log
        self._reported = 1  # the first iteration is in no report, because it includes the start of the script
        self._names: list[str] = []

    @property
    def width(self) -> int:
        """The number of figures in a row."""
        return OWN + 6 * len(self._meter.sent) + 2

    def row(self, times: Sequence[Iteration]) -> list[float]:
        """Return this learner's figures of some iterations.

        They are: the number of iterations; the medians of compute, inside and their sum, in seconds; the jitter; bytes
        and then seconds of each dimension. Last come seconds since 1970, or nan: start and end of the last iteration,
        then the starts and the ends of each phase.
        """
        compute, inside = [item.compute for item in times], [item.inside for item in times]
        whole = [item.compute + item.inside for item in times]
        self._names = [" ".join(filter(None, pair)) for pair in zip(self._meter.names, self._meter.wires, strict=True)]
        medians = [statistics.median(seconds) for seconds in (compute, inside, whole)]
        clock, last = time.time() - time.perf_counter(), times[-1]
        began = last.ended - last.compute - last.inside
        spans = [clock + at for at in (began, last.ended, *self._meter.begins, *self._meter.ends)]
        traffic = [*map(float, self._meter.sent), *self._meter.seconds]
        return [float(len(times)), *medians, _jitter(compute), *traffic, *spans]

    def act(self, rows: NDArray[Any]) -> None:
        """Print the report and write it to the event log, on rank 0."""
        first, self._reported = self._reported + 1, self._reported + int(rows[0, 0])
        if self._grid.rank:
            return
        compute, inside, whole, jitter = rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4]
        lines = list(self._lines(rows))
        wait = inside - inside.min()
        worst, median_jitter = int(jitter.argmax()), float(np.median(jitter))
        times = [float(np.median(seconds)) * 1e3 for seconds in (whole, compute, inside, wait)]
        head = (
            f"iterations {first} to {self._reported}, {self._grid.topology}, mode {self._mode}: {times[0]:.2f} ms each "
            f"({times[1]:.2f} computing, {times[2]:.2f} reducing, of which {times[3]:.2f} waiting for others)"
        )
        foot = f"most jitter: rank {worst} on {self._hosts[worst]}, {jitter[worst]:.1%} of its computing time"
        sys.stderr.write(render_table(head, lines, f"{foot}; median {median_jitter:.1%}"))
        self._log.write({
            "event": "iterations", "first": first, "last": self._reported, "topology": str(self._grid.topology),
            "mode": self._mode, "seconds": float(np.median(whole)), "compute": compute.tolist(),
            "reduce": inside.tolist(), "jitter": jitter.tolist(),
            "most_jitter": {"rank": worst, "host": self._hosts[worst], "share": float(jitter[worst])},
            "dimensions": [{**asdict(line), "rate": line.rate} for line in lines], **self._spans(rows),
        })  # fmt: skip

    def _spans(self, rows: NDArray[Any]) -> dict[str, Any]:
        """Return when the last iteration and its phases began and ended on each rank, in seconds from the first start.

        Times are by the clock of each rank's host; null if a rank has no such phase.
        """
        parts = len(self._names)
        spans = rows[:, OWN + 2 * parts :]
        start = float(spans[:, 0].min())

        def column(place: int) -> list[float | None]:
            return [None if math.isnan(at) else round(at - start, 6) for at in spans[:, place].tolist()]

        axes = [*self._grid.axes, self._grid.axes]
        phases: list[dict[str, Any]] = []
        for place in range(2 * parts):
            whole = place >= 2 * (parts - 1)
            if not np.isnan(spans[:, 2 + place]).all():
                phases.append({
                    "dimension": axes[place // 2], "phase": "allreduce" if whole else PHASES[place % 2],
                    "begin": column(2 + place), "end": column(2 + 2 * parts + place),
                })  # fmt: skip
        return {"start": start, "begin": column(0), "end": column(1), "phases": phases}

    def _lines(self, rows: NDArray[Any]) -> Iterator[DimensionTraffic]:
        """Yield the traffic of the last iteration per dimension: medians over the learners."""
        parts = len(self._names)
        axes = [*self._grid.axes, self._grid.axes]
        learners = [*self._grid.topology.dims, self._grid.size]
        for number, name in enumerate(self._names):
            sent, seconds = (float(np.median(rows[:, OWN + number + at])) for at in (0, parts))
            if sent or seconds:
                yield DimensionTraffic(
                    dimension=axes[number], learners=learners[number], algorithm=name, sent=sent, seconds=seconds
                )


def _jitter(compute: Sequence[float]) -> float:
    """Return the standard deviation of times, relative to their mean."""
    return float(np.std(compute) / max(np.mean(compute), 1e-12))


def render_table(head: str, lines: Sequence[DimensionTraffic], foot: str) -> str:
    """Return the text of a report, with one line per dimension."""
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
