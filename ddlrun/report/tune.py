"""Results of ddlrun network tune as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddlrun.hosts import fold
from ddlrun.report.bench import NAMES
from ddlrun.report.table import aligned
from ddlrun.units import render_bytes, render_rate, render_seconds

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import BestSettings, HorovodResult, TuneRecord

MOST_ROWS = 12


def render_tune(result: "TuneRecord") -> str:
    """Render the links, the fastest candidates, and the settings that were saved."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: "TuneRecord") -> Iterator[str]:
    size, seconds = render_bytes(result["gradient"]), render_seconds(result["seconds"])
    yield f"{result['topology']} on {fold(result['hosts'])}, gradients of {size}, searched for {seconds}"
    links = [f"{NAMES[level]} {render_rate(link['shared'])}" for level, link in result["links"].items()]
    if links:
        yield f"links: {', '.join(links)}"
    yield ""
    measured = result["measured"]
    rows = [["XxYxZ", "mode", "sizes", "step", "plan expects", "runs"]]
    rows += [
        [row["topology"], row["mode"], row["tuning"], render_seconds(row["seconds"]), render_seconds(row["expected"]),
         str(row["runs"])]
        for row in measured[:MOST_ROWS]
    ]  # fmt: skip
    yield from aligned(rows)
    if len(measured) > MOST_ROWS:
        slowest = render_seconds(measured[-1]["seconds"])
        yield f"... and {len(measured) - MOST_ROWS} more, the slowest with {slowest}"
    if not result["complete"]:
        yield "the budget ended the search; give a longer --budget to continue"
    yield ""
    yield _best(result["best"], result["default_seconds"])
    if "horovod" in result:
        yield _horovod(result["horovod"])
    if result["profile"]:
        yield f"saved:   {result['profile']}"


def _best(best: "BestSettings", usual: float) -> str:
    settings = f"{best['topology']}, mode {best['mode']}, {best['tuning']}: {render_seconds(best['seconds'])} per step"
    if best["seconds"] < usual:
        factor = f"{usual / best['seconds']:.2f} times as long"
        return f"best:    {settings}; launch without a profile: {render_seconds(usual)}, {factor}"
    return f"best:    {settings}, as launch without a profile"


def _horovod(result: "HorovodResult") -> str:
    best, usual = result["best"], result["default_seconds"]
    variables = ", ".join(f"{name}={value}" for name, value in best["variables"].items())
    end = "" if result["complete"] else "; the budget ended the search"
    if not variables:
        return f"Horovod: {render_seconds(usual)} per step with its defaults; nothing better was found{end}"
    seconds = f"{render_seconds(best['seconds'])} per step; with its defaults: {render_seconds(usual)}"
    return f"Horovod: {variables}: {seconds}{end}"
