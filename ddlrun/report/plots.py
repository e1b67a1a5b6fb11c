"""Plot of the results of ddlrun network bench, by matplotlib."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import BenchResult

# One per line: MPI's own, and each mode of DDL; a palette for colour-blind readers (Okabe and Ito, 2008).
MARKERS = "osD^v<>"
COLORS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7")


def draw_bench(result: "BenchResult", path: str) -> None:
    """Draw bus bandwidth over size, one panel per collective and one line per algorithm; SVG or PNG by the suffix.

    Raises OSError where the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - 600 ms, for --plot alone

    _draw(Figure(figsize=(9, 6), layout="constrained"), result).savefig(path)


def _draw(figure: Any, result: "BenchResult") -> Any:  # noqa: ANN401 - matplotlib's Figure
    collectives = list(dict.fromkeys(row["collective"] for row in result["measured"]))
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel, collective in zip(panels, collectives, strict=False):
        measured = [row for row in result["measured"] if row["collective"] == collective]
        for algorithm in dict.fromkeys(row["algorithm"] for row in measured):
            points = [(row["bytes"], row["busbw"] / 1e9) for row in measured if row["algorithm"] == algorithm]
            name = algorithm if algorithm == "mpi" else f"mode {algorithm}"
            style = {"marker": MARKERS[len(panel.lines)], "color": COLORS[len(panel.lines)]}
            panel.plot(*zip(*points, strict=True), **style, markersize=4, label=name)
        panel.set(title=collective.replace("_", "-"), xlabel="bytes", ylabel="bus bandwidth, GB/s")
        panel.set(xscale="log", yscale="log")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(result["topology"])
    return figure
