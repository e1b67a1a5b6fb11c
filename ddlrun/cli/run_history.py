"""ddlrun runs: the history of runs."""

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddlrun.cli.options import Sections, option
from ddlrun.cli.value_types import COUNT
from ddlrun.hosts import fold
from ddlrun.report.table import left_aligned
from ddlrun.runs.history import PastRun, PastRunState, read_history
from ddlrun.runs.store import state_folder
from ddlrun.wording import printable

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.runs.records import HistoryRecord, PastRunRecord

MOST_RUNS = 20
LONGEST_HOSTS = 24
HEADER = ("RUN", "STARTED", "STATE", "DURATION", "RANKS", "HOSTS", "PROGRAM")
LESS_IMPORTANT = ("HOSTS", "STARTED", "RANKS", "DURATION")
LEAST_PROGRAM = 10
LONGEST_PROGRAM = 60
# The program of the ranks of ddlrun.run.
CALL = "ddlrun.api.call"
MINUTE, HOUR, DAY = 60, 3600, 86400


@click.command("runs", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@option("Output", "-n", "--number", type=COUNT, default=MOST_RUNS, show_default=True, metavar="N",
        help="List the latest N runs.")  # fmt: skip
@option("Output", "--all", "all_runs", is_flag=True, help="List all runs.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def command(number: int, *, all_runs: bool, as_json: bool) -> None:
    """List your runs, the latest first.

    These are the runs that were started here, with their states, exit codes, durations, hosts and programs. The names
    are for ddlrun logs, rerun, report and kill.
    """
    history = read_history(state_folder(os.environ), None if all_runs else number)
    columns = os.get_terminal_size(1).columns if os.isatty(1) else None
    click.echo(render_history_json(history) if as_json else render_history(history, columns), nl=False)


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
    run = past.run
    return (
        run.run,
        time.strftime("%m-%d %H:%M", time.localtime(run.started)),
        _describe_state(past),
        _format_duration(_duration(past)),
        str(run.ranks),
        _shorten(fold(run.hosts), LONGEST_HOSTS),
        _shorten(printable(_program(run.program)), LONGEST_PROGRAM),
    )


def _describe_state(past: PastRun) -> str:
    state = past.state.value
    return f"{state} ({past.exit_code})" if past.exit_code else state


def _duration(past: PastRun) -> float | None:
    return time.time() - past.run.started if past.state is PastRunState.RUNNING else past.seconds


def _format_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units.

    >>> _format_duration(7.25), _format_duration(125), _format_duration(7260), _format_duration(90000)
    ('7.2 s', '2m05s', '2h01m', '1d01h')
    """
    if seconds is None:
        return "-"
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    if seconds < HOUR:
        return f"{int(seconds) // MINUTE}m{int(seconds) % MINUTE:02}s"
    if seconds < DAY:
        return f"{int(seconds) // HOUR}h{int(seconds) % HOUR // MINUTE:02}m"
    return f"{int(seconds) // DAY}d{int(seconds) % DAY // HOUR:02}h"


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


def render_history_json(history: Sequence[PastRun]) -> str:
    """Render runs as JSON."""
    record: HistoryRecord = {"schema": "urn:ddlrun:runs:1", "runs": [_record(past) for past in history]}
    return json.dumps(record, indent=2) + "\n"


def _record(past: PastRun) -> "PastRunRecord":
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
