"""What ddlrun bench has measured, as text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddlrun.units import render_bytes, render_rate, render_seconds, render_size

NAMES = {"host": "inside a host", "nic": "between hosts", "uplink": "between racks"}


def render_bench(found: dict[str, Any]) -> str:
    """Write the links, then a table a collective: rows sizes, columns algorithms."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['topology']}, {render_seconds(found['seconds'])}"
    rows = [["link", "latency", "a pair alone", "all at once"]]
    rows += [
        [NAMES[level], render_seconds(link["latency"]), render_rate(link["alone"]), render_rate(link["together"])]
        for level, link in found["links"].items()
    ]
    yield from aligned(rows) if found["links"] else ()
    measured = found["measured"]
    for collective in dict.fromkeys(one["collective"] for one in measured):
        yield ""
        yield from _table(collective, [one for one in measured if one["collective"] == collective])
    if found["left_out"]:
        yield ""
        every = {(one["collective"], one["algorithm"]) for one in measured} | {(c, a) for c, a, _ in found["left_out"]}
        yield "left out, as a run takes more than its share of the budget, or of memory:"
        yield from (f"  {line}" for line in _left(found["left_out"], every))
    wrong = [f"{one['collective']} {one['algorithm']} {one['size']} B" for one in measured if not one["right"]]
    if wrong:
        yield f"WRONG RESULTS: {', '.join(wrong)}"


def _table(collective: str, measured: Sequence[dict[str, Any]]) -> Iterator[str]:
    algorithms = list(dict.fromkeys(one["algorithm"] for one in measured))
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for one in measured:
        by_size.setdefault(one["size"], {})[one["algorithm"]] = one
    heads = [name if name == "mpi" else f"mode {name}" for name in algorithms]
    rows = [[collective.replace("_", "-"), *heads, "best algbw", "busbw", "of the limit"]]
    for size, there in by_size.items():
        best = min(there.values(), key=lambda one: float(one["seconds"]))
        share = f"{100 * best['share']:.3g} %" if best["share"] is not None else ""
        times = [render_seconds(there[name]["seconds"]) if name in there else "" for name in algorithms]
        rows.append([render_size(size), *times, *(f"{render_bytes(best[key])}/s" for key in ("algbw", "busbw")), share])
    yield from aligned(rows)


def _left(cells: Sequence[tuple[str, str, int]], every: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line a collective: from which size on which of its algorithms are missing."""
    smallest: dict[tuple[str, str], int] = {}
    for collective, algorithm, size in cells:
        smallest[collective, algorithm] = min(size, smallest.get((collective, algorithm), size))
    for collective in dict.fromkeys(name for name, _ in smallest):
        by_size: dict[int, list[str]] = {}
        for (name, algorithm), size in smallest.items():
            if name == collective:
                by_size.setdefault(size, []).append(algorithm)
        there = sum(name == collective for name, _ in every)
        parts = [
            f"{'' if len(some) == there else ' '.join(some) + ' '}from {render_size(size)}"
            for size, some in by_size.items()
        ]
        yield f"{collective.replace('_', '-')} {', '.join(parts)}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
