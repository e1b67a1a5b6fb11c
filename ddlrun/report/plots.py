"""What ddlrun bench has measured, drawn by matplotlib."""

from typing import Any

# One a line: MPI's own, and each mode of DDL; colours that the colour-blind tell apart (Okabe and Ito, 2008).
MARKERS = "osD^v<>"
COLORS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7")


def draw_bench(found: dict[str, Any], path: str) -> None:
    """Draw bus bandwidth over size, a panel a collective and a line an algorithm; SVG or PNG by the name's end.

    Raises OSError where the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - 300 ms, for a plot alone

    _draw(Figure(figsize=(9, 6), layout="constrained"), found).savefig(path)


def _draw(figure: Any, found: dict[str, Any]) -> Any:  # noqa: ANN401 - matplotlib's Figure
    collectives = list(dict.fromkeys(one["collective"] for one in found["measured"]))
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel, collective in zip(panels, collectives, strict=False):
        measured = [one for one in found["measured"] if one["collective"] == collective]
        for algorithm in dict.fromkeys(one["algorithm"] for one in measured):
            line = [(one["bytes"], one["busbw"] / 1e9) for one in measured if one["algorithm"] == algorithm]
            name = algorithm if algorithm == "mpi" else f"mode {algorithm}"
            look = {"marker": MARKERS[len(panel.lines)], "color": COLORS[len(panel.lines)]}
            panel.plot(*zip(*line, strict=True), **look, markersize=4, label=name)
        panel.set(title=collective.replace("_", "-"), xlabel="bytes", ylabel="bus bandwidth, GB/s")
        panel.set(xscale="log", yscale="log")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(found["topology"])
    return figure
