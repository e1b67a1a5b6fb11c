"""Retention of run folders: those of old runs are removed."""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Retention
from ddlrun.runs.history import PastRunState, attempt_folders, read_past_run
from ddlrun.runs.names import NAME
from ddlrun.runs.registry import read_runs
from ddlrun.runs.state_folders import TRASH, changed_at, elsewhere, find_path, run_paths, state_folders, write_state
from ddlrun.runs.store import write_private

DAY_SECONDS = 86400
# The list of ended runs with their sizes, which a launch reads instead of all run folders.
LIST = "ended"


class EndedRun(NamedTuple):
    """A run that has ended, as the list of a state folder has it."""

    time: float
    """Seconds since 1970 at which it wrote its last file."""
    bytes: int


def remove_old_runs(state: str, retention: Retention) -> int:
    """Take ended runs beyond a retention from the list of runs, for `empty_trash` to delete; return how many.

    A folder outside the state folder, as of --run-dir, stays; only the link to it is removed.
    """
    if retention == Retention():
        return 0
    paths = {name: path for name, path in run_paths(state).items() if re.fullmatch(NAME, name)}
    known = _read_list(state)
    for run in read_runs(state):
        if run.alive() is not False:
            paths.pop(run.run, None)  # whatever its folder lacks, as after a disk was full
    over_now = {name: path for name, path in paths.items() if name in known or _has_ended(path)}
    ended = {name: known.get(name) or _measure(path) for name, path in over_now.items()}
    over = {name for name in _beyond(retention, ended) if _has_ended(paths[name]) and _remove(paths[name])}
    left = {name: run for name, run in ended.items() if name not in over}
    if left != known:
        _write_list(state, left)
    return len(over)


def empty_trash(state: str) -> threading.Thread:
    """Delete what `remove_old_runs` took away, in a thread that ends with this process; the next launch goes on."""
    thread = threading.Thread(target=_empty, args=(state,), daemon=True)
    thread.start()
    return thread


def _empty(state: str) -> None:
    for folder in state_folders(state):
        with suppress(OSError):
            for name in os.listdir(f"{folder}/runs"):
                if name.startswith(TRASH):
                    shutil.rmtree(f"{folder}/runs/{name}", ignore_errors=True)


def _beyond(retention: Retention, ended: Mapping[str, EndedRun]) -> Iterator[str]:
    """Yield the names of the runs that a retention does not keep; the last one has no size that is too large."""
    total = 0
    oldest = 0.0 if retention.days is None else time.time() - retention.days * DAY_SECONDS
    for index, name in enumerate(sorted(ended, key=lambda name: ended[name].time, reverse=True)):
        total += ended[name].bytes
        too_many = retention.runs is not None and index >= retention.runs
        too_large = retention.bytes is not None and index > 0 and total > retention.bytes
        if too_many or too_large or ended[name].time < oldest:
            yield name


def _has_ended(path: str) -> bool:
    """Return True for a run that has an outcome, whose ddlrun or folder is gone, or that did not start for a day."""
    if os.path.islink(path) and not os.path.exists(path):
        return True
    attempts = [past for past in map(read_past_run, attempt_folders(path)) if past is not None]
    if any(past.run.alive() or past.state is PastRunState.UNKNOWN for past in attempts):
        return False
    recorded = bool(attempts) or os.path.exists(find_path(RunDir(path).outcome))
    return recorded or changed_at(path) < time.time() - DAY_SECONDS  # a start takes less time


def _measure(path: str) -> EndedRun:
    """Return the size of a run that has ended; that of a link is none."""
    size, written = 0, 0.0
    for folder, _, names in () if os.path.islink(path) else os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # it has just been removed
                status = os.lstat(f"{folder}/{name}")
                size += status.st_size
                written = max(written, status.st_mtime)
    return EndedRun(written or changed_at(path), size)


def _remove(path: str) -> bool:
    """Remove a link, or rename a folder, which is quick; return True where that worked."""
    other = elsewhere(path)
    try:
        if os.path.islink(path):
            os.unlink(path)
        else:
            _rename(path)
        if other != path and os.path.isdir(other):
            _rename(other)
    except OSError:
        return False
    return True


def _rename(path: str) -> None:
    above, name = os.path.split(path)
    os.rename(path, f"{above}/{TRASH}{name}")


def _read_list(state: str) -> dict[str, EndedRun]:
    """Return the runs that had ended at an earlier launch; none where the list cannot be read."""
    with suppress(OSError, ValueError), open(find_path(f"{state}/{LIST}"), encoding="ascii") as file:
        rows = [line.split() for line in file]
        return {name: EndedRun(float(seconds), int(size)) for name, seconds, size in rows}
    return {}


def _write_list(state: str, ended: Mapping[str, EndedRun]) -> None:
    rows = [f"{name} {int(run.time)} {run.bytes}\n" for name, run in ended.items()]
    write_state(state, lambda folder: write_private(f"{folder}/{LIST}", rows))
