"""Retention of run folders: those of old runs are removed."""

import os
import shutil
import time
from contextlib import suppress

from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Retention
from ddlrun.runs.history import PastRunState, attempt_folders, newest_first, read_past_run, written_at

DAY_SECONDS = 86400


def remove_old_runs(state: str, retention: Retention) -> int:
    """Remove the folders of ended runs beyond a retention; return how many.

    A folder outside the state folder, as of --run-dir, stays; only the link to it is removed.
    """
    if retention.runs is None and retention.days is None:
        return 0
    removed = 0
    for index, path in enumerate(newest_first(state).values()):
        too_many = retention.runs is not None and index >= retention.runs
        if (too_many or _is_older(path, retention.days)) and _has_ended(path):
            _remove(path)
            removed += 1
    return removed


def _is_older(path: str, days: float | None) -> bool:
    return days is not None and written_at(path) < time.time() - days * DAY_SECONDS


def _has_ended(path: str) -> bool:
    """Return True for a run that has an outcome, whose ddlrun is gone, or whose folder is gone."""
    if os.path.islink(path) and not os.path.exists(path):
        return True
    attempts = [past for past in map(read_past_run, attempt_folders(path)) if past is not None]
    if any(past.run.alive() or past.state is PastRunState.UNKNOWN for past in attempts):
        return False
    return bool(attempts) or os.path.exists(RunDir(path).outcome)


def _remove(path: str) -> None:
    if os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
