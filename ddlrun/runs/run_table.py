"""The table of runs, and its JSON."""

import os
import time
from collections.abc import Sequence
from typing import Any

from ddlrun.hosts import fold
from ddlrun.ranges import render_ranges
from ddlrun.report.table import left_aligned
from ddlrun.runs.history import PastRun, PastRunState
from ddlrun.runs.run_list import ListedRun, ProcessesByHost
from ddlrun.units import render_duration
from ddlrun.wording import printable

COMMAND_WIDTH = 100
LONGEST_HOSTS = 24
HEADER = ("RUN", "STARTED", "STATE", "DURATION", "RANKS", "HOSTS", "PROGRAM")
LESS_IMPORTANT = ("HOSTS", "STARTED", "RANKS", "DURATION")
LEAST_PROGRAM = 10
LONGEST_PROGRAM = 60
# The program of the ranks of ddlrun.run.
CALL = "ddlrun.api.call"


def render_runs(runs: Sequence[ListedRun], columns: int | None = None) -> str:
    """Render runs as a table, with the processes of each below it.

    On a narrow terminal, leave out less important columns, but not the program.
    """
    if not runs:
        return "no runs\n"
    rows = [HEADER, *map(_row, runs)]
    lines = left_aligned(_fit(rows, columns) if columns else rows)
    shown = (line[: columns or None] for line in lines)
    below = ([], *map(_describe_processes, runs))
    return "".join(f"{line}\n" for row, more in zip(shown, below, strict=True) for line in (row, *more))


def _describe_processes(run: ListedRun) -> list[str]:
    """Return the lines about the processes of a run; none where there are none."""
    if not run.processes:
        return []
    record = run.past and run.past.run
    lines = []
    if run.state is not PastRunState.RUNNING:
        hosts = fold(run.processes)
        lines.append(f"  ended, but left processes on {hosts}: ddlrun clean {hosts}")
    elif record:
        seen = f"ranks seen: {len(run.ranks_seen)} of {record.ranks}"
        lines.append(f"  ddlrun: process {record.pid} on {record.host}; {seen}; logs: {record.run_dir}")
    for host, on_host in run.processes.items():
        ranks = sorted({process.rank for process in on_host if process.rank is not None})
        noun = "process" if len(on_host) == 1 else "processes"
        lines.append(f"  {host}: {len(on_host)} {noun}, ranks {render_ranges(ranks) or 'none'}")
    return lines


def _fit(rows: Sequence[tuple[str, ...]], columns: int) -> Sequence[tuple[str, ...]]:
    """Return rows without less important columns, until there is room for the programs."""
    for name in LESS_IMPORTANT:
        others = [(*row[:-1], "p" * LEAST_PROGRAM) for row in rows]
        if max(map(len, left_aligned(others))) <= columns:
            break
        place = rows[0].index(name)
        rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    return rows


def _row(listed: ListedRun) -> tuple[str, ...]:
    past = listed.past
    if past is None:
        return (listed.name, "-", listed.state.value, "-", "-", _shorten(fold(listed.processes), LONGEST_HOSTS), "-")
    run, seconds = past.run, _duration(past)
    return (
        run.run,
        time.strftime("%m-%d %H:%M", time.localtime(run.started)),
        f"{listed.state.value} ({past.exit_code})" if past.exit_code else listed.state.value,
        "-" if seconds is None else render_duration(seconds),
        str(run.ranks),
        _shorten(fold(run.hosts), LONGEST_HOSTS),
        _shorten(printable(_program(run.program)), LONGEST_PROGRAM),
    )


def _duration(past: PastRun) -> float | None:
    return time.time() - past.run.started if past.state is PastRunState.RUNNING else past.seconds


def _program(words: Sequence[str]) -> str:
    """Return a command line without the folder of its first word, and without Python before a script.

    >>> _program(["/bin/python3", "train.py"]), _program(["python", "-m", "ddlrun.api.call", "train", "/tmp/call-1"])
    ('train.py', 'ddlrun.run(train)')
    """
    if list(words[1:3]) == ["-m", CALL]:
        return f"ddlrun.run({''.join(words[3:4])})"
    first = os.path.basename(words[0]) if words else ""
    is_script = first.startswith("python") and len(words) > 1 and not words[1].startswith("-")
    return " ".join(words[1:] if is_script else (first, *words[1:]))


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def runs_record(runs: Sequence[ListedRun], processes: ProcessesByHost | None) -> dict[str, Any]:
    """Return runs as JSON can carry them, and all processes if hosts were searched."""
    record: dict[str, Any] = {"runs": [_run_record(run.past, run.state) for run in runs if run.past]}
    if processes is not None:
        record["processes"] = {
            host: [{**process._asdict(), "keeper": process.keeper} for process in on_host]
            for host, on_host in processes.items()
        }
    return record


def _run_record(past: PastRun, state: PastRunState) -> dict[str, Any]:
    run = past.run
    return {
        "run": run.run,
        "state": state.value,
        "exit_code": past.exit_code,
        "started": run.started,
        "seconds": _duration(past),
        "ranks": run.ranks,
        "hosts": list(run.hosts),
        "pid": run.pid,
        "host": run.host,
        "program": list(run.program),
        "arguments": list(past.arguments),
        "working_folder": past.working_folder,
        "run_dir": past.folder,
    }
