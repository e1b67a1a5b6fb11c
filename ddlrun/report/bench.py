"""Results of ddlrun network bench as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddlrun.report.table import aligned
from ddlrun.units import render_byte_rate, render_rate, render_seconds, render_size

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import BenchResult, CollectiveRecord, LinkRates

NAMES = {"host": "inside a host", "nic": "between hosts", "uplink": "between racks"}


def render_bench(result: "BenchResult") -> str:
    """Render the links, then one table per collective: rows are sizes, columns algorithms."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: "BenchResult") -> Iterator[str]:
    yield f"{result['topology']}, {render_seconds(result['seconds'])}"
    if result["links"]:
        yield from _links(result["links"])
    measured = result["measured"]
    for collective in dict.fromkeys(row["collective"] for row in measured):
        yield ""
        yield from _table(collective, [row for row in measured if row["collective"] == collective])
    if result["skipped"]:
        yield ""
        cells = {(row["collective"], row["algorithm"]) for row in measured}
        cells |= {(collective, algorithm) for collective, algorithm, _ in result["skipped"]}
        yield "left out: a run takes more than its share of the budget, or of memory:"
        yield from (f"  {line}" for line in _left_out(result["skipped"], cells))
    wrong = [f"{row['collective']} {row['algorithm']} {row['size']} B" for row in measured if not row["correct"]]
    if wrong:
        yield f"WRONG RESULTS: {', '.join(wrong)}"


def _links(links: Mapping[str, "LinkRates"]) -> Iterator[str]:
    rows = [["link", "latency", "a pair alone", "all at once"]]
    rows += [
        [NAMES[level], render_seconds(link["latency"]), render_rate(link["single"]), render_rate(link["shared"])]
        for level, link in links.items()
    ]
    yield from aligned(rows)


def _table(collective: str, measured: Sequence["CollectiveRecord"]) -> Iterator[str]:
    algorithms = list(dict.fromkeys(row["algorithm"] for row in measured))
    by_size: dict[int, dict[str, CollectiveRecord]] = {}
    for row in measured:
        by_size.setdefault(row["size"], {})[row["algorithm"]] = row
    heads = [name if name == "mpi" else f"mode {name}" for name in algorithms]
    rows = [[collective.replace("_", "-"), *heads, "best algbw", "busbw", "of the limit"]]
    for size, by_algorithm in by_size.items():
        best = min(by_algorithm.values(), key=lambda row: float(row["seconds"]))
        share = f"{100 * best['share']:.3g} %" if best["share"] is not None else ""
        times = [render_seconds(by_algorithm[name]["seconds"]) if name in by_algorithm else "" for name in algorithms]
        rates = [render_byte_rate(rate) for rate in (best["algbw"], best["busbw"])]
        rows.append([render_size(size), *times, *rates, share])
    yield from aligned(rows)


def _left_out(left_out: Sequence[tuple[str, str, int]], cells: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield one line per collective: the smallest size left out, and its algorithms unless all are."""
    smallest: dict[tuple[str, str], int] = {}
    for collective, algorithm, size in left_out:
        smallest[collective, algorithm] = min(size, smallest.get((collective, algorithm), size))
    for collective in dict.fromkeys(name for name, _ in smallest):
        by_size: dict[int, list[str]] = {}
        for (name, algorithm), size in smallest.items():
            if name == collective:
                by_size.setdefault(size, []).append(algorithm)
        total = sum(name == collective for name, _ in cells)
        parts = [
            f"{'' if len(algorithms) == total else ' '.join(algorithms) + ' '}from {render_size(size)}"
            for size, algorithms in by_size.items()
        ]
        yield f"{collective.replace('_', '-')} {', '.join(parts)}"
