"""The section of learners: the reports of ddlrun.ddl on iterations, and the learners that were slow."""

import time
from collections.abc import Iterator, Sequence

from ddlrun.page.record import Fields, RunRecord
from ddlrun.page.sections import Chart, Line, PageSection, Table, make_section, make_table

# Of more reports, every n-th is drawn; of more ranks, the slowest of the last report.
MOST_POINTS, MOST_LINES = 300, 32
CAUSES = {"queue": "others run on its CPUs"}
FINDINGS = {"better": "faster after the move", "not better": "no gain by the move"}


def make_learners(record: RunRecord) -> PageSection:
    """Return the section, which has no content for a run without ddlrun.ddl's reports."""
    return make_section(
        "Learners",
        unfolded=True,
        charts=_charts(record.dumps) if record.dumps else (),
        tables=[*map(_dimensions, record.dumps[-1:]), _slow_learners(record.findings)],
    )


def _charts(dumps: Sequence[Fields]) -> Iterator[Chart]:
    iterations, total = [], 0
    for dump in dumps:  # after another ddl.init() they count from 1 again
        total += dump["last"] - dump["first"] + 1
        iterations.append(total)
    every = -(-len(dumps) // MOST_POINTS)
    drawn, numbers = dumps[::every], iterations[::every]
    medians = [_line("computing", [1e3 * _median(dump["compute"]) for dump in drawn]),
               _line("reducing", [1e3 * _median(dump["reduce"]) for dump in drawn])]  # fmt: skip
    names = dict.fromkeys(_dimension(entry) for dump in drawn for entry in dump["dimensions"])
    rates = [_line(name, [_rate(dump, name) for dump in drawn]) for name in names]
    for title, unit, lines in (
        ("Computing by rank", "ms", _by_rank(drawn, "compute", 1e3)),
        ("An iteration: median of the ranks", "ms", medians),
        ("Jitter by rank, of the computing time", "%", _by_rank(drawn, "jitter", 100.0)),
        ("Bandwidth: what a rank sends, by dimension", "B/s", rates),
    ):
        yield {"title": title, "unit": unit, "iterations": numbers, "lines": lines}


def _line(name: str, values: list[float | None], rank: int | None = None) -> Line:
    return {"name": name, "rank": rank, "values": [value and float(f"{value:.4g}") for value in values]}


def _by_rank(dumps: Sequence[Fields], field: str, factor: float) -> list[Line]:
    """Return a line per rank; a later report may have fewer ranks than the first."""
    last = dumps[-1]["compute"]
    slowest = sorted(range(len(last)), key=lambda rank: -last[rank])[:MOST_LINES]
    return [
        _line(f"rank {rank}", [factor * dump[field][rank] if rank < len(dump[field]) else None for dump in dumps], rank)
        for rank in sorted(slowest)
    ]


def _dimension(entry: Fields) -> str:
    return f"{entry['dimension']} {entry['algorithm']}"


def _rate(dump: Fields, name: str) -> float | None:
    return next((entry["rate"] for entry in dump["dimensions"] if _dimension(entry) == name), None)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _dimensions(last: Fields) -> Table:
    rows = [
        [entry["dimension"], str(entry["learners"]), entry["algorithm"], f"{entry['sent'] / 1e6:.2f}",
         f"{1e3 * entry['seconds']:.2f}", f"{entry['rate'] / 1e6:.1f}"]
        for entry in last["dimensions"]
    ]  # fmt: skip
    iterations = f"iterations {last['first']} to {last['last']}"
    caption = f"The last report: {iterations}, mode {last['mode']}, {1e3 * last['seconds']:.2f} ms each"
    return make_table(caption, ["dimension", "learners", "algorithm", "sent, MB", "busy, ms", "MB/s"], rows)


def _slow_learners(findings: Sequence[Fields]) -> Table:
    """Return a row for each rank and finding, with the number of checks and the highest score."""
    groups: dict[tuple[str, ...], list[Fields]] = {}
    for it in findings:
        event, cause = str(it["event"]), str(it.get("cause", ""))
        words = (str(it["rank"]), str(it["host"]), FINDINGS.get(event, event), CAUSES.get(cause, cause))
        groups.setdefault(words, []).append(it)
    rows = [
        [_clock(equal[0]["time"]), *words, str(len(equal)), f"{max(it['score'] for it in equal):.2f}"]
        for words, equal in groups.items()
    ]
    titles = ["first at", "rank", "host", "finding", "cause", "checks", "times the median"]
    return make_table("Slow learners", titles, rows)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
