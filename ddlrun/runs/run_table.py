"""Tables and JSON of runs: with their processes, for ddlrun ps, and past ones, for ddlrun runs."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.hosts import fold
from ddlrun.report.table import left_aligned
from ddlrun.runs.history import PastRun, PastRunState
from ddlrun.runs.orphans import OrphanProcess
from ddlrun.runs.registry import Run
from ddlrun.units import render_duration
from ddlrun.wording import printable

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.runs.records import HistoryRecord, PastRunRecord, RunsRecord

COMMAND_WIDTH = 100
LONGEST_HOSTS = 24
HEADER = ("RUN", "STARTED", "STATE", "DURATION", "RANKS", "HOSTS", "PROGRAM")
LESS_IMPORTANT = ("HOSTS", "STARTED", "RANKS", "DURATION")
LEAST_PROGRAM = 10
LONGEST_PROGRAM = 60
# The program of the ranks of ddlrun.run.
CALL = "ddlrun.api.call"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """A run and its processes on the hosts that have any; `run` is None where it was started elsewhere."""

    run_id: str
    run: Run | None
    processes: Mapping[str, Sequence[OrphanProcess]]

    @property
    def is_over(self) -> bool:
        """Return True if the run has ended and left no process."""
        return self.run is not None and self.run.alive() is False and not self.processes


def render_runs(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> str:
    """Render the runs, each with its state and its processes per host."""
    grouped = _group(runs, processes)
    lines = [line for group in grouped if not group.is_over for line in _lines(group)]
    over = len([group for group in grouped if group.is_over])
    if over:
        lines.append(f"ended runs without processes: {over}; ddlrun clean removes them from the list")
    return "".join(f"{line}\n" for line in lines or ["no runs"])


def runs_record(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> "RunsRecord":
    """Return the runs and all processes as JSON can carry them."""
    return {
        "schema": "urn:ddlrun:ps:1",
        "runs": [{**run._asdict(), "alive": run.alive()} for run in runs],
        "processes": {
            host: [{**process._asdict(), "keeper": process.keeper} for process in on_host]
            for host, on_host in processes.items()
        },
    }


def _group(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> list[RunProcesses]:
    """Group processes by run: first the runs of the registry, then the others by their ids."""
    registered = {run.run: run for run in runs}
    others = {process.run for on_host in processes.values() for process in on_host} - set(registered)
    return [
        RunProcesses(run_id, registered.get(run_id), _select(run_id, processes))
        for run_id in (*registered, *sorted(others))
    ]


def _select(run_id: str, processes: Mapping[str, Sequence[OrphanProcess]]) -> dict[str, list[OrphanProcess]]:
    """Return the processes of a run by host, without hosts that have none."""
    selected = {host: [process for process in on_host if process.run == run_id] for host, on_host in processes.items()}
    return {host: on_host for host, on_host in selected.items() if on_host}


def _lines(group: RunProcesses) -> list[str]:
    run = group.run
    since = f", since {_format_time(run.started)}" if run else ""
    lines = [f"{group.run_id}: {_describe_state(group)}{since}"]
    if run:
        ranks = {rank for on_host in group.processes.values() for rank in _ranks(on_host)}
        lines.append(f"  {' '.join(run.program)[:COMMAND_WIDTH]}")
        lines.append(f"  ranks seen: {len(ranks)} of {run.ranks}; logs: {run.run_dir}")
    for host, on_host in group.processes.items():
        noun = "process" if len(on_host) == 1 else "processes"
        lines.append(f"  {host}: {len(on_host)} {noun}, ranks {','.join(map(str, _ranks(on_host))) or 'none'}")
    return lines


def _ranks(processes: Sequence[OrphanProcess]) -> list[int]:
    return sorted({process.rank for process in processes if process.rank is not None})


def _describe_state(group: RunProcesses) -> str:
    run = group.run
    alive = run.alive() if run else None
    if run and alive:
        return f"running, ddlrun is process {run.pid} on {run.host}"
    if alive is None and any(process.supervised for on_host in group.processes.values() for process in on_host):
        return f"running, started on {run.host}" if run else "running, started elsewhere"
    if group.processes:
        return f"ended, but left processes on {fold(group.processes)}: ddlrun clean {fold(group.processes)}"
    return f"no processes found, started on {run.host}" if run else "no processes found"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def render_history(history: Sequence[PastRun], columns: int | None = None) -> str:
    """Render runs as a table. On a narrow terminal, leave out less important columns, but not the program."""
    if not history:
        return "no runs\n"
    rows = [HEADER, *map(_row, history)]
    lines = left_aligned(_fit(rows, columns) if columns else rows)
    return "".join(f"{line[: columns or None]}\n" for line in lines)


def _fit(rows: Sequence[tuple[str, ...]], columns: int) -> Sequence[tuple[str, ...]]:
    """Return rows without less important columns, until there is room for the programs."""
    for name in LESS_IMPORTANT:
        others = [(*row[:-1], "p" * LEAST_PROGRAM) for row in rows]
        if max(map(len, left_aligned(others))) <= columns:
            break
        place = rows[0].index(name)
        rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    return rows


def _row(past: PastRun) -> tuple[str, ...]:
    run, seconds = past.run, _duration(past)
    return (
        run.run,
        time.strftime("%m-%d %H:%M", time.localtime(run.started)),
        _describe_end(past),
        "-" if seconds is None else render_duration(seconds),
        str(run.ranks),
        _shorten(fold(run.hosts), LONGEST_HOSTS),
        _shorten(printable(_program(run.program)), LONGEST_PROGRAM),
    )


def _describe_end(past: PastRun) -> str:
    state = past.state.value
    return f"{state} ({past.exit_code})" if past.exit_code else state


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


def history_record(history: Sequence[PastRun]) -> "HistoryRecord":
    """Return runs as JSON can carry them."""
    return {"schema": "urn:ddlrun:runs:1", "runs": [_past_record(past) for past in history]}


def _past_record(past: PastRun) -> "PastRunRecord":
    run = past.run
    return {
        "run": run.run,
        "state": past.state.value,
        "exit_code": past.exit_code,
        "started": run.started,
        "seconds": _duration(past),
        "ranks": run.ranks,
        "hosts": list(run.hosts),
        "program": list(run.program),
        "arguments": list(past.arguments),
        "working_folder": past.working_folder,
        "run_dir": past.folder,
    }
