"""HTML page of a run: one file without references to others."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from ddlrun.report.boxes import MARKS
from ddlrun.report.chart import Chart, ChartLine, ChartText, draw_chart
from ddlrun.report.outcome import render_end
from ddlrun.report.plan import render_cores
from ddlrun.report.record import Fields, RankRecord, RecordedRun
from ddlrun.report.svg import render_groups

MOST_RANKS = 1024
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
LEGEND = f"Each square is a core: {MARKS}"
CAUSES = {"queue": "others run on its CPUs"}
FINDINGS = {"slow": "slow", "better": "faster after the move", "not better": "no gain by the move"}


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank in the table; `level` is ok, dim or failure; `slow`: a check found the rank slow."""

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
    """Render the page of a run; `going`: it was under way at `now` (seconds since 1970)."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["clock"] = _clock
    rows = list(_rows(record))
    shown = [row for row in rows if row.rank.number < MOST_RANKS or row.slow or row.level == "failure"]
    return environment.get_template("page.html").render(
        record=record, plan=record.plan, outcome=record.outcome, now=now, level=_level(record, going=going),
        status=_status(record, going=going), picture=render_groups(record.groups), legend=LEGEND, rows=shown,
        left_out=len(rows) - len(shown), charts=list(_charts(record)), slow=_slow(record),
        last=record.dumps[-1] if record.dumps else None, program=_program(record),
    )  # fmt: skip


def _level(record: RecordedRun, *, going: bool) -> str:
    if going or record.outcome is None:
        return "warning"
    return "failure" if record.outcome["exit_code"] else "ok"


def _status(record: RecordedRun, *, going: bool) -> str:
    """Return the predicate of the sentence `The run ...`."""
    outcome = record.outcome
    if outcome is None:
        if not record.started:
            return "was planned, and not started"
        if going:
            return "is under way"
        return "has no recorded end: ddlrun was killed, runs on another host, or could not write"
    duration = f"after {outcome['seconds']:.1f} s"
    if not outcome["exit_code"]:
        return f"succeeded {duration}"
    reason = ""
    if outcome["root"]:
        reason = f": rank {outcome['root']['rank']} on {outcome['root']['host']}"
    elif outcome["reason"]:
        reason = f": {outcome['reason']}"
    return (
        f"{'was ended' if outcome['requested'] else 'failed'} with exit code {outcome['exit_code']} {duration}{reason}"
    )


def _program(record: RecordedRun) -> Sequence[str]:
    """Return the user's part of the command: the words after ddlrun's own script, where it has one."""
    words = list(record.plan["command"])
    start = next((at for at, word in enumerate(words) if word.endswith("/ddlrun/rank/start.py")), -1)
    return words[start + 1 :] if start >= 0 else words


def _rows(record: RecordedRun) -> Iterator[RankRow]:
    slow = {finding["rank"] for finding in record.findings if finding["event"] == "slow"}
    last = record.dumps[-1] if record.dumps else None
    for rank in record.ranks:
        placed = record.groups[rank.group].local_ranks[rank.planned["local_rank"]]
        measured = last if last is not None and rank.number < len(last["compute"]) else None
        text, level = _end(rank)
        yield RankRow(
            rank=rank,
            place=rank.planned,
            cores=render_cores(placed.cores),
            bound="" if rank.bound is None else rank.bound["problem"] or rank.bound["cpus"],
            compute=f"{1e3 * measured['compute'][rank.number]:.2f}" if measured else "",
            jitter=f"{100 * measured['jitter'][rank.number]:.1f}" if measured else "",
            end=text,
            level=level,
            slow=rank.number in slow,
        )


def _end(rank: RankRecord) -> tuple[str, str]:
    """Return the end of a rank as text, and its level."""
    end = rank.end
    if end is None:
        return "", "ok"
    text = render_end(end) + (", ended by ddlrun" if end.ordered else "")
    if end.exit_code == 0:
        return text, "ok"
    return text, "dim" if end.ordered else "failure"


def _charts(record: RecordedRun) -> Iterator[Chart]:
    dumps = record.dumps
    if not dumps:
        return
    iterations, total = [], 0
    for dump in dumps:  # after another ddl.init() they count from 1 again
        total += dump["last"] - dump["first"] + 1
        iterations.append(total)
    names = list(dict.fromkeys(_dimension(entry) for dump in dumps for entry in dump["dimensions"]))
    rates = [ChartLine(name, [_rate(dump, name) for dump in dumps]) for name in names]
    text = ChartText("Bandwidth by dimension", "MB per second that a rank sends", "MB/s")
    yield draw_chart(text, iterations, rates)
    medians = [(_median(dump["compute"]), _median(dump["reduce"])) for dump in dumps]
    parts = [
        ChartLine("computing", [1e3 * compute for compute, _ in medians]),
        ChartLine("reducing", [1e3 * reduce for _, reduce in medians]),
    ]
    yield draw_chart(ChartText("An iteration", "ms, median of all ranks", "ms"), iterations, parts)
    text = ChartText("Computing by rank", "ms per iteration", "ms")
    yield draw_chart(text, iterations, _by_rank(dumps, "compute", 1e3))
    text = ChartText("Jitter by rank", "% of the computing time", "%")
    yield draw_chart(text, iterations, _by_rank(dumps, "jitter", 100.0))


def _by_rank(dumps: Sequence[Fields], field: str, factor: float) -> list[ChartLine]:
    """Return one line per rank; a later report may have fewer ranks than the first."""
    return [
        ChartLine(
            f"rank {rank}", [factor * dump[field][rank] if rank < len(dump[field]) else None for dump in dumps], rank
        )
        for rank in range(len(dumps[0]["compute"]))
    ]


def _dimension(entry: Fields) -> str:
    return f"{entry['dimension']} {entry['algorithm']}"


def _rate(dump: Fields, name: str) -> float | None:
    return next((entry["rate"] / 1e6 for entry in dump["dimensions"] if _dimension(entry) == name), None)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _slow(record: RecordedRun) -> list[dict[str, Any]]:
    return [
        {
            **finding,
            "finding": FINDINGS.get(finding["event"], finding["event"]),
            "cause": CAUSES.get(finding.get("cause", ""), finding.get("cause", "")),
        }
        for finding in record.findings
    ]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
