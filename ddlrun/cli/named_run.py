"""The run that a command names: its folder, name and state."""

import os

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import PastRunState, find_run, read_past_run
from ddlrun.runs.store import state_folder


def find_run_folder(run: str | None) -> str:
    """Return the folder of a run. Raises InputError where there is none."""
    folder = find_run(run, state_folder(os.environ))
    if not os.path.exists(RunDir(folder).plan):
        raise InputError(f"run folder {folder}: there is no plan.json in it; ddlrun runs lists the runs")
    return folder


def may_run(folder: str) -> bool:
    """Return False once a run has ended."""
    past = read_past_run(folder)
    return past is None or past.state in (PastRunState.RUNNING, PastRunState.UNKNOWN)


def run_name(folder: str) -> str:
    """Return the name of a run."""
    past = read_past_run(folder)
    return os.path.basename(folder) if past is None else past.run.run
