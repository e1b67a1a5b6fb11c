"""Pictures of the results of tests.bench.allreduce --json FILE: `python -m tests.bench.pictures FILE FOLDER`.

Writes FOLDER/allreduce-share.svg, the share of the limit that each algorithm reaches at 16 MiB, and
FOLDER/allreduce-sizes.svg, time against size, in terms of the limit. They follow the dark mode of the browser.
With --smoke, pictures of invented results, in a temporary folder.
"""

import json
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tests.bench.allreduce import append, complete
from tests.bench.cells import TABLE
from tests.bench.options import bench_parser

MIB = 16
# The palette of Okabe and Ito, for colour-blind readers; then the colours of dark mode.
INK, PAPER, FAINT, GRID = "#1f2328", "#ffffff", "#59636e", "#d0d7de"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#00805e", "#a64d79"
DARK = {
    INK: "#e6edf3", PAPER: "#0d1117", FAINT: "#9198a1", GRID: "#3d444d",
    BLUE: "#56b4e9", ORANGE: "#f0883e", GREEN: "#2fbf94", PURPLE: "#e29ac3",
}  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "ddlrun", "font.family": "sans-serif", "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": INK,
    "grid.color": GRID, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "axes.titlesize": 9,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "hatch.linewidth": 0.6,
}  # fmt: skip
LABELS = {"p": "ddlrun, mode p", "tcp": "mode p without MPI", "torch-ddl": "PyTorch's backend ddl"}
# Rank order -> colour, hatch, position of the bar in its row.
ORDERS = {"host": (BLUE, "", -0.2), "ddl": (ORANGE, "////", 0.2)}
# Lines of the second picture: (algorithm, order) -> label, colour, dashes, marker.
LINES = {
    ("p", "host"): ("ddlrun, mode p", BLUE, "-", "o"),
    ("tcp", "host"): ("mode p without MPI", BLUE, ":", "x"),
    ("mpi", "host"): ("mpi", GREEN, "-", "s"),
    ("han", "host"): ("han", PURPLE, "-", "^"),
    ("horovod", "host"): ("horovod", INK, "--", "v"),
    ("mpi", "ddl"): ("mpi, ddl order", ORANGE, "--", "D"),
}


# The background of a number on a line.
UNDER = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}


class Place(NamedTuple):
    """A cluster under one MPI."""

    shape: str
    nic: int
    uplink: int
    mpi: str

    @property
    def title(self) -> str:
        return f"{self.shape}, NIC {self.nic}, uplink {self.uplink} Mbit/s, {self.mpi}"


# Rank order, algorithm, MiB -> result.
Results = dict[tuple[str, str, float], dict[str, Any]]


def read(lines: Iterable[str]) -> dict[Place, Results]:
    """Return the results between hosts; a later result replaces an earlier one of the same cell."""
    places: dict[Place, Results] = {}
    for result in map(json.loads, lines):
        place = Place(result["shape"], result["nic"], result["uplink"], result["mpi"])
        if result["least"]:
            places.setdefault(place, {})[result["order"], result["algorithm"], result["mib"]] = result
    return places


def seconds(result: Mapping[str, Any]) -> float:
    return float(statistics.median(result["seconds"]))


def shares(results: Results) -> dict[str, dict[str, float]]:
    """Return algorithm -> order -> percent of the limit, the best in host order first."""
    table: dict[str, dict[str, float]] = {}
    for (order, name, mib), result in results.items():
        if mib == MIB:
            table.setdefault(name, {})[order] = 100 * result["limit"] / seconds(result)
    return dict(sorted(table.items(), key=lambda item: -item[1].get("host", item[1].get("ddl", 0))))


def share_panel(axes: Axes, title: str, table: Mapping[str, Mapping[str, float]]) -> None:
    for row, orders in enumerate(table.values()):
        alone = len(orders) == 1
        for order, share in orders.items():
            colour, hatch, at = ORDERS[order]
            y = row if alone else row + at
            axes.barh(y, share, 0.36, facecolor=PAPER if hatch else colour, edgecolor=colour, hatch=hatch, linewidth=1)
            axes.text(share + 1.5, y, f"{share:.0f} %", va="center", fontsize=7.5, bbox=UNDER if share > 85 else None)
    axes.set_yticks(range(len(table)), [LABELS.get(name, name) for name in table])
    axes.set(xlim=(0, 112), ylim=(len(table) - 0.4, -0.6), xticks=range(0, 101, 25))
    axes.axvline(100, color=INK, linewidth=1, dashes=(4, 3))
    axes.set_title(title)
    axes.tick_params(length=0)


def draw_shares(places: Mapping[Place, Results]) -> Figure:
    """Draw bars of each algorithm's share of the limit, one panel per cluster."""
    tables = [(place.title, table) for place, results in places.items() if (table := shares(results))]
    rows = [len(table) for _, table in tables]
    figure = Figure(figsize=(9, 0.3 * max(rows) * math.ceil(len(rows) / 2) + 1.2), layout="constrained")
    panels = list(figure.subplots(math.ceil(len(rows) / 2), 2, squeeze=False).flat)
    for axes, (title, table) in zip(panels, tables, strict=False):
        share_panel(axes, title, table)
    for axes in panels[len(tables) :]:
        axes.set_axis_off()
    keys = [Patch(facecolor=PAPER if hatch else c, edgecolor=c, hatch=hatch) for c, hatch, _ in ORDERS.values()]
    figure.legend(keys, ["ranks in host order", "ranks in ddl order"], loc="outside upper left", ncols=2, frameon=False)
    figure.supxlabel(f"percent of the limit T* at {MIB} MiB; dashed: the limit", fontsize="medium")
    return figure


def curve(results: Results, name: str, order: str) -> list[tuple[float, float]]:
    """Return (MiB, times the limit) of an algorithm, where there is a limit."""
    return sorted(
        (mib, seconds(result) / result["limit"])
        for (of_order, of_name, mib), result in results.items()
        if (of_name, of_order) == (name, order) and result["limit"]
    )


def draw_sizes(place: Place, results: Results) -> Figure:
    """Draw the time of each algorithm, in multiples of the limit, against size; each line has its name at its end."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    ends: list[tuple[str, str, float, float]] = []
    for (name, order), (label, colour, dashes, marker) in LINES.items():
        points = curve(results, name, order)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, marker=marker, markersize=4)
            ends.append((label, colour, *points[-1]))
    axes.axhline(1, color=INK, linewidth=1, dashes=(4, 3))
    sizes = sorted({mib for _, _, mib in results})
    axes.set(xscale="log", xlabel="MiB of float32", ylabel="time / T*, the limit", title=place.title)
    axes.set_ylim(0)
    axes.set_xlim(right=1.4 * sizes[-1])
    axes.set_xticks(sizes, [f"{mib:g}" if mib >= 1 else f"1/{1 / mib:g}" for mib in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, axis="y", linewidth=0.5)
    name_ends(axes, ends)
    return figure


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Move values up until each is at least `gap` above the one below."""
    moved = list(values)
    order = sorted(range(len(values)), key=values.__getitem__)
    for below, above in zip(order, order[1:], strict=False):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


def name_ends(axes: Axes, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Write each name beside the end of its line, without overlaps."""
    right = 1.7 * max(x for _, _, x, _ in ends)
    heights = apart([y for *_, y in ends], 0.055 * axes.get_ylim()[1])
    for (label, colour, x, y), height in zip(ends, heights, strict=True):
        axes.annotate(
            f"{label} {y:.2f}", (x, y), (right, height), va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4},
        )  # fmt: skip


def svg(figure: Figure, title: str) -> str:
    """Return a picture as SVG: with text as text, reproducible, with rules for dark mode."""
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Title": title})
    short = re.sub(r"<!--.*?-->| transform=\"rotate\(-0 [^\"]*\"|(?m:^ +)", "", text.getvalue(), flags=re.DOTALL)
    rules = "".join(dark_rule(light, dark) for light, dark in DARK.items())
    return short.replace("<defs>", f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n<defs>", 1)


def dark_rule(light: str, dark: str) -> str:
    """Return CSS that replaces one colour of fills and strokes by another."""
    selectors = {name: f'[style*="{name}: {light}"],[{name}="{light}"]' for name in ("fill", "stroke")}
    return "".join(f"{selector}{{{name}:{dark}!important}}" for name, selector in selectors.items())


def invent_results(file: Path) -> None:
    """Write a result of each algorithm at each size of the cells, in the form of tests.bench.allreduce."""
    for cell in TABLE:
        for mib in cell.mib:
            times = [2 * max(cell.limit(mib), 0.001)]
            measured = {"mib": mib, "repeat": 1, "seconds": times, "bytes": [[cell.least(mib)]], "cpu": times}
            results = [measured | {"algorithm": name, "right": True, "note": ""} for name in cell.names_at(mib)]
            append(file, [complete(cell, result, cell.manager.title) for result in results])


def draw(file: Path, folder: Path) -> None:
    """Write the pictures of a file of results to a folder, and print their sizes."""
    with mpl.rc_context(STYLE), file.open() as lines:
        places = read(lines)
        if not any(shares(results) for results in places.values()):
            sys.exit(f"{file}: no results between hosts at {MIB} MiB")
        pictures = {"share": svg(draw_shares(places), f"Share of the limit that allreduces reach, {MIB} MiB")}
        place, results = max(places.items(), key=lambda item: len(item[1]))
        pictures["sizes"] = svg(draw_sizes(place, results), "Time relative to the limit, by array size")
    for name, text in pictures.items():
        (folder / f"allreduce-{name}.svg").write_text(text)
        print(f"allreduce-{name}.svg: {len(text)} characters, {len(places)} clusters")


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="of tests.bench.allreduce --json")
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    options = parser.parse_args()
    if not options.smoke and options.file is None:
        parser.error("FILE is missing")
    with tempfile.TemporaryDirectory() as name:
        if options.smoke:
            options.file, options.folder = Path(name, "results.json"), Path(name)
            invent_results(options.file)
        draw(options.file, options.folder)


if __name__ == "__main__":
    main()
