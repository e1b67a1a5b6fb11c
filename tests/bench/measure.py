"""Samples taken in turn, and tables of them: median, spread, ratio, goal."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BESIDE = Path(sys.executable).parent
DDLRUN = [str(BESIDE / "ddlrun")] if (BESIDE / "ddlrun").exists() else [sys.executable, "-m", "ddlrun"]
_HEADINGS = ("", "median", "min", "max", "ratio", "goal", "met")
Sample = Callable[[], float]
# The longest time in seconds that a command may take.
PATIENCE = 120.0


class Failed(Exception):  # noqa: N818 - shown in the table
    """A sample could not be taken, for the reason given."""


class StoodStill(Failed):
    """A command did not end in a time that no machine needs, and was killed."""


class NotInstalled(Failed):
    """A program is not installed on this machine, which is not a failure of the benchmark."""


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one command, or the reason why there are none."""

    values: tuple[float, ...]
    error: Failed | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def against(self, other: "Series", how: Callable[[float, float], float]) -> "Series":
        """Combine with another series, sampled in turn with this one, pair by pair."""
        pairs = zip(self.values, other.values, strict=False)
        return Series(tuple(how(mine, theirs) for mine, theirs in pairs), self.error or other.error)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; `base` is the series that its ratio refers to."""

    name: str
    series: Series
    unit: str = "ms"
    goal: float | None = None
    base: Series | None = None


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises Failed with the last line of its output, or StoodStill."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise StoodStill(f"did not end in {PATIENCE:g} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed(f"failed with {done.returncode}: {lines[-1] if lines else 'no output'}")
    return done


def wall(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Sample:
    """Return a sampler of a command's wall-clock time in ms."""

    def sample() -> float:
        start = time.perf_counter()
        run(argv, env)
        return (time.perf_counter() - start) * 1000

    return sample


def interleaved(samplers: Mapping[str, Sample], rounds: int) -> dict[str, Series]:
    """Run each sampler `rounds` times in turn, after once to warm up unless there is a single round."""
    failed: dict[str, Failed] = {}
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(0 if rounds > 1 else 1, rounds + 1):
        for name, sample in samplers.items():
            if name in failed:
                continue
            try:
                value = sample()
            except Failed as error:
                failed[name] = error
                continue
            if number > 0:
                samples[name].append(value)
    return {name: Series(() if name in failed else tuple(samples[name]), failed.get(name)) for name in samplers}


def show(title: str, rows: Sequence[Row]) -> list[str]:
    """Print a table; return the names of the rows that failed."""
    cells = [_HEADINGS, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells if len(row) == len(_HEADINGS)) for i in range(len(_HEADINGS))]
    widths[0] = max(len(row[0]) for row in cells)
    sys.stdout.write(f"\n{title}\n")
    for row in cells:
        padded = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=False))]
        sys.stdout.write("  " + " | ".join(padded).rstrip() + "\n")
    sys.stdout.flush()
    return [row.name for row in rows if row.series.error and not isinstance(row.series.error, NotInstalled)]


def _cells(row: Row) -> tuple[str, ...]:
    series = row.series
    if not series.values:
        return (row.name, str(series.error))
    figures = (_figure(value, row.unit) for value in (series.median, min(series.values), max(series.values)))
    ratio = f"{series.median / row.base.median:.2f}" if row.base and row.base.values else ""
    if row.goal is None:
        return (row.name, *figures, ratio, "", "")
    return (row.name, *figures, ratio, f"<= {row.goal:g} {row.unit}", "yes" if series.median <= row.goal else "no")


def _figure(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit == "x" else f"{value:.1f} {unit}"
