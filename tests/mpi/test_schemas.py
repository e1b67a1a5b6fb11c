"""The JSON of real runs and measurements is that of the published schemas, and the text has the same values."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddlrun.report.bench import render_bench
from ddlrun.report.tune import render_tune
from tests.conftest import launch_line
from tests.support.json_schemas import unsaid, validate, validate_run_folder

pytestmark = [pytest.mark.openmpi(5), pytest.mark.busy]

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]
RANKS = """
import os, time
import numpy as np
from ddlrun import ddl
ddl.init()
x = np.ones(1000, np.float32)
for step in range(20):
    ddl.all_reduce(x, in_place=True)
while not os.path.exists({metrics!r}):
    time.sleep(0.1)
raise SystemExit(3 * (ddl.rank() == 1))
"""
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def test_every_file_of_a_run_folder(mpirun: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    metrics = tmp_path / "run" / "metrics.jsonl"
    script.write_text(RANKS.format(metrics=str(metrics)))
    argv = launch_line(mpirun, tmp_path, "-np", "2", "--overload", "--sample-interval", "0.1", str(script))
    environ = {**os.environ, **YIELD, "DDL_OPTIONS": "-mode r -dump_iter 6"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, cwd=ROOT, timeout=300)
    assert done.returncode == 3, done.stderr
    files = {"plan.json", "binding.json", "ddl.jsonl", "events.jsonl", "metrics.jsonl", "outcome.json", "run.json"}
    assert validate_run_folder(tmp_path / "run") == files
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["root"]["rank"] == 1


def test_ps_of_a_running_job(mpirun: str, tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    argv = launch_line(mpirun, tmp_path, "-np", "2", "--overload", "sleep", "600")
    with subprocess.Popen(argv, env=environ) as job:
        try:
            shown = wait_for_runs(job, environ)
            validate(shown, "ps")
            assert [run["ranks"] for run in shown["runs"]] == [2]
        finally:
            job.terminate()


def wait_for_runs(job: subprocess.Popen[bytes], environ: dict[str, str]) -> dict[str, Any]:
    """Return the output of `ddlrun ps --json` with the keepers of both ranks; other jobs may run here too."""
    end = time.monotonic() + 120
    while True:
        ps = subprocess.run([*DDLRUN, "ps", "--json"], env=environ, capture_output=True, text=True, check=True)
        shown: dict[str, Any] = json.loads(ps.stdout)
        ids = [run["run"] for run in shown["runs"]]
        keepers = [
            process for process in shown["processes"]["localhost"] if process["keeper"] and process["run"] in ids
        ]
        if len(keepers) == 2:
            return shown
        assert job.poll() is None, f"the job ended with {job.returncode}"
        assert time.monotonic() < end, shown
        time.sleep(0.1)


def measure(mpirun: str, tmp_path: Path, *words: str) -> str:
    argv = [*DDLRUN, *words, "--mpirun", mpirun, "--topology", "2", "--overload"]
    environ = {**os.environ, **YIELD, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bench(mpirun: str, tmp_path: Path) -> None:
    words = ["bench", "localhost", "--sizes", "8B,1MiB", "--modes", "r", "--budget", "5s"]
    result = json.loads(measure(mpirun, tmp_path, *words, "--json"))
    validate(result, "bench")
    slower = ["measured.samples", "measured.quartiles", "measured.algbw", "measured.busbw"]
    assert unsaid(result, render_bench(result), "network", *slower) == []
    best = min(result["measured"], key=lambda row: float(row["seconds"]))
    assert unsaid(best, render_bench(result), "samples", "quartiles") == []
    assert re.search(r"(?m)^inside a host .*bit/s .*bit/s$", measure(mpirun, tmp_path, *words))


def test_tune_and_its_profile(mpirun: str, tmp_path: Path) -> None:
    words = ["tune", "localhost", "--gradient", "64KiB", "--budget", "6s", "--no-horovod"]
    words += ["--save", f"{tmp_path}/profile.json"]
    result = json.loads(measure(mpirun, tmp_path, *words, "--json"))
    validate(result, "tune")
    assert unsaid(result, render_tune(result), "major", "links.latency", "links.single") == []
    validate(json.loads((tmp_path / "profile.json").read_text()), "profile")
    text = measure(mpirun, tmp_path, *words)
    assert re.match(rf"2x1x1 on {os.uname().nodename}, gradients of 65.5 kB, .*\nlinks: inside a host .*bit/s\n", text)
    assert text.endswith(f"saved:   {tmp_path}/profile.json\n")
