"""Folders of runs, as ddlrun writes them."""

import json
import os
import time
from pathlib import Path

from ddlrun.runs.registry import born


def make_run(
    state: Path, name: str, *, age: float = 0.0, exit_code: int | None = 0, pid: int = 0, printed: int = 0
) -> Path:
    """Write the folder of a run that began `age` seconds ago; without an exit code, it has no outcome."""
    folder = state / "runs" / name
    folder.mkdir(parents=True)
    started = time.time() - age
    start = {
        "run": name, "run_dir": str(folder), "hosts": ["n1", "n2"], "ranks": 4, "pid": pid, "host": os.uname().nodename,
        "process_start": born(pid) if pid else "", "started": started, "program": ["/bin/python3", "train.py"],
        "arguments": ["-np", "4", "train.py"], "working_folder": "/work",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(start))
    (folder / "plan.json").write_text("{}")
    (folder / "mpirun.log").write_bytes(bytes(printed))
    if exit_code is not None:
        outcome = {"exit_code": exit_code, "seconds": 125.0, "requested": exit_code == 130}
        (folder / "outcome.json").write_text(json.dumps(outcome))
    for path in (*folder.iterdir(), folder):
        os.utime(path, (started, started))
    return folder
