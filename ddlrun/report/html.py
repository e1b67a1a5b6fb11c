"""A run's record -> one HTML page that needs nothing else."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ddlrun.report.chart import Chart, ChartLine, chart
from ddlrun.report.outcome import in_words
from ddlrun.report.picture import LEGEND, draw
from ddlrun.report.plan import shown_cores
from ddlrun.report.record import Fields, RankRecord, RecordedRun

MOST_RANKS = 1024
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
CAUSES = {"queue": "others run on its CPUs"}
WHATS = {"slow": "slow", "better": "faster after the move", "not better": "no gain by the move"}


class RankRow(NamedTuple):
    """A rank as the table shows it; `level` is ok, dim or failure, `slow`: a check found it so."""

    rank: RankRecord
    place: Fields
    cores: str
    bound: str
    compute: str
    jitter: str
    end: str
    level: str
    slow: bool


def render_page(record: RecordedRun, *, going: bool, now: float) -> str:
    """Write the page; `going`: the run had not ended `now` (seconds since 1970)."""
    import jinja2  # noqa: PLC0415 - 40 ms, for pages alone

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["clock"] = _clock
    rows = list(_rows(record))
    shown = [row for row in rows if row.rank.number < MOST_RANKS or row.slow or row.level == "failure"]
    return environment.get_template("page.html").render(
        record=record, plan=record.plan, outcome=record.outcome, now=now, level=_level(record, going=going),
        status=_status(record, going=going), picture=draw(record.groups), legend=_legend(), rows=shown,
        left=len(rows) - len(shown), charts=list(_charts(record)), slow=_slow(record),
        last=record.dumps[-1] if record.dumps else None, program=_program(record),
    )  # fmt: skip


def _level(record: RecordedRun, *, going: bool) -> str:
    if going or record.outcome is None:
        return "warning"
    return "failure" if record.outcome["exit_code"] else "ok"


def _status(record: RecordedRun, *, going: bool) -> str:
    outcome = record.outcome
    if outcome is None and not record.started:
        return "was planned, and not started"
    if outcome is None:
        return (
            "goes on" if going else "has no end in its folder: ddlrun was killed, runs on another host, or had no room"
        )
    took = f"after {outcome['seconds']:.1f} s"
    if not outcome["exit_code"]:
        return f"ended well {took}"
    root = outcome["root"]
    why = f": rank {root['rank']} on {root['host']}" if root else f": {outcome['reason']}" if outcome["reason"] else ""
    return f"{'was ended' if outcome['wanted'] else 'failed'} with exit code {outcome['exit_code']} {took}{why}"


def _program(record: RecordedRun) -> Sequence[str]:
    words = list(record.plan["command"])
    start = next((at for at, word in enumerate(words) if word.endswith("/ddlrun/rank/start.py")), -1)
    return words[start + 1 :] if start >= 0 else words


def _legend() -> str:
    return LEGEND.replace("a character a core: ", "Each square is a core: ")


def _rows(record: RecordedRun) -> Iterator[RankRow]:
    slow = {one["rank"] for one in record.findings if one["event"] == "slow"}
    last = record.dumps[-1] if record.dumps else None
    for rank in record.ranks:
        seat = record.groups[rank.group].seats[rank.planned["local_rank"]]
        known = last is not None and rank.number < len(last["compute"])
        bound, end = rank.bound, rank.end
        bad = bool(end and end.exit_code and not end.ordered)
        yield RankRow(
            rank, rank.planned, shown_cores(seat.cores),
            "" if bound is None else bound["problem"] or bound["cpus"],
            f"{1e3 * last['compute'][rank.number]:.2f}" if last and known else "",
            f"{100 * last['jitter'][rank.number]:.1f}" if last and known else "",
            "" if end is None else in_words(end) + (", on order" if end.ordered else ""),
            "failure" if bad else "dim" if end and end.exit_code else "ok", rank.number in slow,
        )  # fmt: skip


def _charts(record: RecordedRun) -> Iterator[Chart]:
    dumps = record.dumps
    if not dumps:
        return
    iterations, before = [], 0
    for dump in dumps:  # they count from 1 again after another ddl.init()
        before += dump["last"] - dump["first"] + 1
        iterations.append(before)
    ranks = range(len(dumps[0]["compute"]))

    def by_rank(what: str, times: float) -> list[ChartLine]:
        return [
            ChartLine(
                f"rank {rank}", [times * dump[what][rank] if rank < len(dump[what]) else None for dump in dumps], rank
            )
            for rank in ranks
        ]

    names = list(dict.fromkeys(_dimension(one) for dump in dumps for one in dump["dimensions"]))
    rates = [ChartLine(name, [_rate(dump, name) for dump in dumps]) for name in names]
    yield chart("Bandwidth by dimension", "MB a second that a learner sends", "MB/s", iterations, rates)
    middle = [(_median(dump["compute"]), _median(dump["reduce"])) for dump in dumps]
    parts = [ChartLine(name, [1e3 * one[at] for one in middle]) for at, name in enumerate(("computing", "reducing"))]
    yield chart("An iteration", "ms, median of all ranks", "ms", iterations, parts)
    yield chart("Computing by rank", "ms of an iteration", "ms", iterations, by_rank("compute", 1e3))
    yield chart("Jitter by rank", "% of the computing time", "%", iterations, by_rank("jitter", 100.0))


def _dimension(one: Fields) -> str:
    return f"{one['dimension']} {one['algorithm']}"


def _rate(dump: Fields, name: str) -> float | None:
    return next((one["rate"] / 1e6 for one in dump["dimensions"] if _dimension(one) == name), None)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _slow(record: RecordedRun) -> list[dict[str, Any]]:
    return [
        {
            **one,
            "what": WHATS.get(one["event"], one["event"]),
            "why": CAUSES.get(one.get("cause", ""), one.get("cause", "")),
        }
        for one in record.findings
    ]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
