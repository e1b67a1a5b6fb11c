"""What ddlrun tune has found, as text."""

from collections.abc import Iterator
from typing import Any

from ddlrun.report.bench import NAMES, aligned
from ddlrun.units import render_bytes, render_rate, render_seconds

MOST_ROWS = 12


def render_tune(found: dict[str, Any]) -> str:
    """Write the links, the fastest of what was tried, and what was kept."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    size, took = render_bytes(found["gradient"]), render_seconds(found["seconds"])
    yield f"{found['topology']}, gradients of {size}, searched for {took}"
    links = [f"{NAMES[level]} {render_rate(link['together'])}" for level, link in found["links"].items()]
    if links:
        yield f"links: {', '.join(links)}"
    yield ""
    measured, best, usual = found["measured"], found["best"], found["usual"]
    rows = [["XxYxZ", "mode", "sizes", "step", "plan expects", "runs"]]
    rows += [
        [row["topology"], row["mode"], row["tuning"], render_seconds(row["seconds"]), render_seconds(row["expected"]),
         str(row["runs"])]
        for row in measured[:MOST_ROWS]
    ]  # fmt: skip
    yield from aligned(rows)
    if len(measured) > MOST_ROWS:
        yield f"... and {len(measured) - MOST_ROWS} more that took up to {render_seconds(measured[-1]['seconds'])}"
    if not found["complete"]:
        yield "the budget ended the search; with a longer --budget it would go on"
    yield ""
    took = f"{render_seconds(best['seconds'])} a step"
    words = f"{best['topology']}, mode {best['mode']}, {best['tuning']}: {took}"
    if best["seconds"] < usual:
        times = f"{usual / best['seconds']:.2f} times that"
        yield f"best:    {words}; as launch does by itself: {render_seconds(usual)}, {times}"
    else:
        yield f"best:    {words}, which is what launch does by itself"
    if "horovod" in found:
        yield _horovod(found["horovod"])
    if found["profile"]:
        yield f"kept in: {found['profile']}"


def _horovod(found: dict[str, Any]) -> str:
    best, usual = found["best"], found["usual"]
    words = ", ".join(f"{name}={value}" for name, value in best["variables"].items())
    end = "" if found["complete"] else "; the budget ended the search"
    if not words:
        return f"Horovod: {render_seconds(usual)} a step with its own fusion and cycle, and nothing better{end}"
    return f"Horovod: {words}: {render_seconds(best['seconds'])} a step; with its own: {render_seconds(usual)}{end}"
