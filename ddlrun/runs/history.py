"""Past and present runs: found by their names, listed, and removed."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from ddlrun.errors import InputError
from ddlrun.plan.plan import Plan
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.names import LAST, choose_name
from ddlrun.runs.registry import Run, describe_run, parse_run, read_runs
from ddlrun.runs.state_folders import elsewhere, find_path, last_run, newest_first, run_paths, write_state
from ddlrun.runs.store import reserve_outcome, write_private


class PastRunState(Enum):
    """The state of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"
    """Ended by a user, the scheduler or a time limit."""
    LOST = "lost"
    """Its ddlrun was killed, or its host failed."""
    UNKNOWN = "unknown"
    """Started on another host, without an outcome so far."""

    @property
    def may_run(self) -> bool:
        """False once the run has ended."""
        return self in (PastRunState.RUNNING, PastRunState.UNKNOWN)


class PastRun(NamedTuple):
    """A run with its start, and its end if it has ended."""

    run: Run
    folder: str
    arguments: tuple[str, ...]
    """The words after `ddlrun launch`, without secrets."""
    working_folder: str
    exit_code: int | None
    """The exit code with which ddlrun ended; None: there is no outcome."""
    seconds: float | None
    """The duration of an ended run."""
    requested: bool
    """Whether a user, the scheduler or a time limit ended it."""

    @property
    def state(self) -> PastRunState:
        """The state of the run."""
        if self.exit_code is None:
            return {True: PastRunState.RUNNING, False: PastRunState.LOST, None: PastRunState.UNKNOWN}[self.run.alive()]
        if self.exit_code == 0:
            return PastRunState.SUCCEEDED
        return PastRunState.ENDED if self.requested else PastRunState.FAILED


def write_start(plan: Plan, arguments: Sequence[str], state: str) -> None:
    """Write run.json to the run folder, and link to a folder elsewhere from the state folder; errors are ignored.

    `arguments` are the words after `ddlrun launch`, without secrets.
    """
    with suppress(OSError):
        record = {
            **describe_run(plan),
            "arguments": list(arguments),
            "working_folder": os.getcwd(),
        }
        write_private(plan.run_dir.start, [json.dumps(record), "\n"])
    reserve_outcome(plan.run_dir)
    if find_folder(plan.run_id, state) is None:
        write_state(f"{state}/runs", lambda folder: os.symlink(plan.run_dir.path, f"{folder}/{plan.run_id}"))


def find_run(text: str | None, state: str) -> str:
    """Return the folder of the run that a user means: a path, a name or its beginning, `last` or None for the last run.

    Raises InputError where there is no such run, or there are several.
    """
    if text is None or text == LAST:
        return _last_folder(state)
    if "/" in text or os.path.isdir(text):
        return os.path.abspath(text)
    folder = find_folder(text, state)
    if folder is None:
        raise InputError(f"run {text!r}: no run of this name was started here; ddlrun runs lists them")
    return folder


def find_run_folder(text: str | None, state: str) -> str:
    """Return the folder of the run that a user means, which has a plan. Raises InputError where there is none."""
    folder = find_run(text, state)
    if not os.path.exists(RunDir(folder).plan):
        raise InputError(f"run folder {folder}: there is no plan.json in it; ddlrun runs lists the runs")
    return folder


def may_run(folder: str) -> bool:
    """Return False once the run in a folder has ended."""
    past = read_past_run(folder)
    return past is None or past.state.may_run


def run_name(folder: str) -> str:
    """Return the name of the run in a folder."""
    past = read_past_run(folder)
    return os.path.basename(folder) if past is None else past.run.run


def find_folder(text: str, state: str) -> str | None:
    """Return the folder of a run by its name or the beginning of it, or by NAME-N for its restart N.

    Raises InputError where several runs have this beginning.
    """
    paths = run_paths(state)
    names = sorted(paths)
    name = choose_name(text, names)
    if name is not None:
        return os.path.realpath(paths[name])
    first, _, attempt = text.rpartition("-")
    name = choose_name(first, names) if first and attempt.isdigit() else None
    folder = os.path.realpath(find_path(f"{paths.get(str(name))}/restart-{attempt}"))
    return folder if name is not None and os.path.isdir(folder) else None


def _last_folder(state: str) -> str:
    """Return the folder of the run that was started last. Raises InputError where there is none."""
    last = last_run(state)
    if last is None:
        raise InputError("no run was started here; name the folder of one")
    return last


def read_history(state: str, most: int | None = None) -> list[PastRun]:
    """Return up to `most` runs and restarts in a state folder, the running ones first, then the latest; None: all."""
    active = {_base_folder(run.run_dir) for run in read_runs(state) if run.alive()}
    folders = dict.fromkeys(map(os.path.realpath, newest_first(state).values()))
    attempts = (
        [*filter(None, map(read_past_run, attempt_folders(base)))]
        for base in sorted(folders, key=lambda folder: folder not in active)
    )
    runs = [run for known in itertools.islice(filter(None, attempts), most) for run in known]
    return sorted(runs, key=lambda past: (past.state is PastRunState.RUNNING, past.run.started), reverse=True)[:most]


def _base_folder(folder: str) -> str:
    """Return the folder of a run, given that of the run or of a restart."""
    return re.sub(r"/restart-[0-9]+$", "", os.path.realpath(folder))


def attempt_folders(folder: str) -> Iterator[str]:
    """Yield the folder of a run and those of its restarts."""
    yield folder
    for base in dict.fromkeys((folder, elsewhere(folder))):
        with suppress(OSError):
            names = (name for name in os.listdir(base) if re.fullmatch(r"restart-[0-9]+", name))
            yield from (f"{base}/{name}" for name in names)


def attempt_names(folder: str) -> list[str]:
    """Return the names of a run and its restarts, given its folder."""
    name = os.path.basename(folder)
    restarts = (os.path.basename(path) for path in attempt_folders(folder) if path != folder)
    return [name, *(f"{name}-{restart.removeprefix('restart-')}" for restart in restarts)]


def restart_folder(folder: str) -> str:
    """Return the folder of the restart that follows a run or a restart.

    >>> restart_folder("/runs/a"), restart_folder("/runs/a/restart-1")
    ('/runs/a/restart-1', '/runs/a/restart-2')
    """
    match = re.fullmatch(r"(.*)/restart-([0-9]+)", folder)
    return f"{match[1]}/restart-{int(match[2]) + 1}" if match else f"{folder}/restart-1"


def read_past_run(folder: str) -> PastRun | None:
    """Return the run in a folder; None where the records of its start or its end cannot be read."""
    try:
        with open(RunDir(folder).start, encoding="utf-8") as file:
            start = json.load(file)
        outcome = _read_outcome(folder)
        return PastRun(
            run=parse_run(start),
            folder=folder,
            arguments=tuple(start["arguments"]),
            working_folder=start["working_folder"],
            exit_code=outcome.get("exit_code"),
            seconds=outcome.get("seconds"),
            requested=bool(outcome.get("requested")),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _read_outcome(folder: str) -> Mapping[str, Any]:
    """Return the outcome of a run; empty without one. Raises OSError or ValueError."""
    try:
        with open(find_path(RunDir(folder).outcome), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}
