"""What ddlrun bench has measured, drawn by matplotlib."""

from typing import Any

# One a line: MPI's own, and each mode of DDL.
MARKERS = "osD^v<>"


def draw_bench(found: dict[str, Any], path: str) -> None:
    """Draw bus bandwidth over size, a panel a collective and a line an algorithm; SVG or PNG by the name's end.

    Raises OSError where the file cannot be written.
    """
    from matplotlib import style  # noqa: PLC0415 - 300 ms, for a plot alone
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    with style.context("tableau-colorblind10"):
        _draw(Figure(figsize=(9, 6), layout="constrained"), found).savefig(path)


def _draw(figure: Any, found: dict[str, Any]) -> Any:  # noqa: ANN401 - matplotlib's Figure
    collectives = list(dict.fromkeys(one["collective"] for one in found["measured"]))
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel, collective in zip(panels, collectives, strict=False):
        measured = [one for one in found["measured"] if one["collective"] == collective]
        for algorithm in dict.fromkeys(one["algorithm"] for one in measured):
            line = [(one["bytes"], one["busbw"] / 1e9) for one in measured if one["algorithm"] == algorithm]
            name = algorithm if algorithm == "mpi" else f"mode {algorithm}"
            panel.plot(*zip(*line, strict=True), marker=MARKERS[len(panel.lines)], markersize=4, label=name)
        panel.set(title=collective.replace("_", "-"), xlabel="bytes", ylabel="bus bandwidth, GB/s")
        panel.set(xscale="log", yscale="log")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(found["topology"])
    return figure
