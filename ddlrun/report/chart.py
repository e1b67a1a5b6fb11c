"""Lines over iterations -> where a template draws them."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

MOST_POINTS, MOST_LINES = 400, 32


class ChartFrame(NamedTuple):
    """A chart's size in pixels, and where the lines' edges are in it."""

    width: int = 440
    height: int = 230
    left: int = 52
    right: int = 430
    top: int = 12
    bottom: int = 190


class ChartLine(NamedTuple):
    """Values at each iteration (None: not known), and what they are of; `rank` None: of no single rank."""

    name: str
    values: Sequence[float | None]
    rank: int | None = None


class RenderedLine(NamedTuple):
    """A line as the template draws it: `points` of an SVG polyline, `style` a number, `middle` the median."""

    name: str
    points: str
    rank: int | None
    style: int
    middle: str


class Chart(NamedTuple):
    """A chart; ticks are (place in pixels, text). `note` says what is left out, if anything."""

    title: str
    said: str
    lines: tuple[RenderedLine, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    note: str
    frame: ChartFrame = ChartFrame()


def chart(title: str, said: str, unit: str, iterations: Sequence[int], lines: Sequence[ChartLine]) -> Chart:
    """Draw lines over iterations, at least one; of many lines those with the largest values, of many points some."""
    shown = sorted(lines, key=lambda line: -_largest(line))[:MOST_LINES] if len(lines) > MOST_LINES else list(lines)
    every = -(-len(iterations) // MOST_POINTS)
    kept = range(0, len(iterations), every)
    top = max((_largest(line) for line in shown), default=0.0)
    up = ticks(0.0, top)
    low, high = iterations[0], iterations[-1]
    across = ticks(low, high, whole=True)
    frame = ChartFrame()

    def x(iteration: float) -> float:
        share = (iteration - low) / (high - low) if high > low else 0.5
        return round(frame.left + (frame.right - frame.left) * share, 1)

    def y(value: float) -> float:
        return round(frame.bottom - (frame.bottom - frame.top) * value / up[-1], 1)

    def points(values: Sequence[float | None]) -> str:
        known = ((iterations[at], values[at]) for at in kept)
        drawn = [f"{x(when)},{y(value)}" for when, value in known if value is not None]
        return " ".join(drawn * 2 if len(drawn) == 1 else drawn)  # a line of one point would not be seen

    drawn = tuple(
        RenderedLine(
            line.name, points(line.values), line.rank, number if line.rank is None else line.rank, _middle(line, unit)
        )
        for number, line in enumerate(shown)
    )
    left = f"the {len(shown)} highest of {len(lines)} ranks are drawn" if len(shown) < len(lines) else ""
    thinned = f"every {every} reports" if every > 1 else ""
    return Chart(
        title, said, drawn, tuple((x(at), f"{at:g}") for at in across),
        tuple((y(at), f"{at:g}") for at in up), ", ".join(filter(None, (left, thinned))),
    )  # fmt: skip


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return round numbers, at most 6: from `low` until one is not below `high`; `whole`: all inside.

    >>> ticks(0, 4.3), ticks(6, 56, whole=True)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 50.0])
    """
    if high <= low:
        return [low] if whole else [low, low + 1]
    least = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * by for by in (1, 2, 5, 10) if power * by >= least * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = (math.ceil(low / step), math.floor(high / step)) if whole else (0, math.ceil(high / step - 1e-9))
    return [round(number * step, 12) for number in range(first, last + 1)]


def _largest(line: ChartLine) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _middle(line: ChartLine, unit: str) -> str:
    known = [value for value in line.values if value is not None]
    return f"{statistics.median(known):.3g} {unit}" if known else "-"
