"""Charts of values over iterations: the coordinates that a template draws."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOST_POINTS, MOST_LINES = 400, 32


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """The size of a chart, and the edges of its plot area, in pixels."""

    width: int = 440
    height: int = 230
    left: int = 52
    right: int = 430
    top: int = 12
    bottom: int = 190


FRAME = ChartFrame()


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A series: its name, its value at each iteration (None: unknown), and its rank if it is that of one rank."""

    name: str
    values: Sequence[float | None]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class RenderedLine:
    """A line for the template: the points of an SVG polyline, the number of its style, its median as text."""

    name: str
    points: str
    rank: int | None
    style: int
    median: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; ticks are (pixels, text). `note`: the lines and points that are left out; empty if none are."""

    title: str
    caption: str
    lines: tuple[RenderedLine, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    note: str
    frame: ChartFrame = FRAME


@dataclass(frozen=True, slots=True)
class ChartText:
    """The title of a chart, its caption, and the unit of its values."""

    title: str
    caption: str
    unit: str


def draw_chart(text: ChartText, iterations: Sequence[int], lines: Sequence[ChartLine]) -> Chart:
    """Draw lines over iterations.

    Of more than MOST_LINES lines those with the largest values are drawn; of more than MOST_POINTS points every n-th.
    """
    drawn = sorted(lines, key=lambda line: -_largest(line))[:MOST_LINES] if len(lines) > MOST_LINES else list(lines)
    every = -(-len(iterations) // MOST_POINTS)
    scale = _Scale(iterations[0], iterations[-1], ticks(0.0, max((_largest(line) for line in drawn), default=0.0)))
    notes = []
    if len(drawn) < len(lines):
        notes.append(f"the {len(drawn)} highest of {len(lines)} ranks are drawn")
    if every > 1:
        notes.append(f"1 of every {every} reports")
    return Chart(
        title=text.title,
        caption=text.caption,
        lines=tuple(
            RenderedLine(
                name=line.name,
                points=_points(scale, iterations, line.values, every),
                rank=line.rank,
                style=number if line.rank is None else line.rank,
                median=_median(line, text.unit),
            )
            for number, line in enumerate(drawn)
        ),
        x_ticks=tuple((scale.x(at), f"{at:g}") for at in ticks(scale.first, scale.last, whole=True)),
        y_ticks=tuple((scale.y(at), f"{at:g}") for at in scale.y_ticks),
        note=", ".join(notes),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """The iterations and the ticks that the plot area spans."""

    first: int
    last: int
    y_ticks: Sequence[float]

    def x(self, iteration: float) -> float:
        """Return the pixel of an iteration."""
        share = (iteration - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return round(FRAME.left + (FRAME.right - FRAME.left) * share, 1)

    def y(self, value: float) -> float:
        """Return the pixel of a value."""
        return round(FRAME.bottom - (FRAME.bottom - FRAME.top) * value / self.y_ticks[-1], 1)


def _points(scale: _Scale, iterations: Sequence[int], values: Sequence[float | None], every: int) -> str:
    samples = ((iterations[at], values[at]) for at in range(0, len(iterations), every))
    points = [f"{scale.x(iteration)},{scale.y(value)}" for iteration, value in samples if value is not None]
    return " ".join(points * 2 if len(points) == 1 else points)  # a line of one point would be invisible


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return up to 6 round numbers from `low` to the first not below `high`; `whole`: integers inside the range.

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


def _median(line: ChartLine, unit: str) -> str:
    values = [value for value in line.values if value is not None]
    return f"{statistics.median(values):.3g} {unit}" if values else "-"
