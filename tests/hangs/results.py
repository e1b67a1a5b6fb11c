"""The results of runs, in results.json, which only runs write: one line per run."""

import json
import subprocess
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")
PRODUCT = FILE.parents[2] / "ddlrun"


def read_results() -> dict[str, dict[str, Any]]:
    """Return the name of each run -> its result."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def write_result(name: str, row: dict[str, Any]) -> None:
    """Add the result of a run, or replace it."""
    results = dict(sorted({**read_results(), name: row}.items()))
    lines = (f"{json.dumps(run)}: {json.dumps(result)}" for run, result in results.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def current_commit() -> str:
    """Return the commit of the product."""
    argv = ["git", "log", "-1", "--format=%h", "--", str(PRODUCT)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=PRODUCT).stdout.strip()
