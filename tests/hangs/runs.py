"""Runs of jobs that hang, until --stall-timeout ends them while other tools look at them; and of healthy jobs."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ddlrun.errors import EXIT_STALLED
from tests.conftest import MPIRUNS, OWN, launch_line
from tests.hangs import live
from tests.hangs.catalogue import Run
from tests.hangs.judge import Judgement, judge
from tests.hangs.kinds.job import LAST_STEP

STALL_SECONDS = 8.0
# Other tools look at a job this long after its last output: on a busy machine, it may take a while to hang.
LOOK_SECONDS = 4.0
MOST_SECONDS = 300.0
# No healthy job may be ended within this many times the timeout.
HEALTHY_FACTOR = 3
HEALTHY = Path(__file__).with_name("healthy.py")
REPOSITORY = Path(__file__).parents[2]
MANAGERS = {"mpi": MPIRUNS[5], "horovod": MPIRUNS[4]}
PYTHONS = {"jax": Path(sys.prefix, "frameworks", "bin", "python")}
ENVIRONMENT = {
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
EXIT_INTERRUPTED = 128 + signal.SIGINT
Row = dict[str, Any]


def run_hang(run: Run) -> Row:
    """Run a job that hangs, and return its line of the results."""
    with tempfile.TemporaryDirectory(prefix="hang") as name, open(f"{name}/errors", "w+") as errors:
        folder = Path(name)
        argv, environ = _command(run, folder), {**os.environ, **ENVIRONMENT}
        with subprocess.Popen(
            argv, stdout=errors, stderr=errors, cwd=REPOSITORY, env=environ, stdin=subprocess.DEVNULL
        ) as job:
            end = time.time() + MOST_SECONDS
            begun, seen = _look(run, folder, job, end)
            try:
                code = job.wait(max(end - time.time(), 1))
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGINT)
                code = job.wait()
        return _describe(run, folder, begun, code) | _describe_others(run, seen)


def run_healthy(name: str) -> Row:
    """Run a healthy job for three times the timeout after it has started, and return its line of the results."""
    seconds = HEALTHY_FACTOR * STALL_SECONDS
    with tempfile.TemporaryDirectory(prefix="healthy") as folder:
        # It goes on for longer: a busy machine may give it no time for a while.
        program = [*_launch("mpi", 3, Path(folder)), sys.executable, str(HEALTHY), name, f"{2 * seconds:g}"]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
        ) as job:
            started = bool(job.stdout and job.stdout.readline())
            try:
                code = job.wait(seconds)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGINT)
                job.wait()
                code = 0
        file = Path(folder, "run", "examination.json")
        text = json.loads(file.read_text())["sentence"] if file.exists() else ""
        return {"ended": code != 0 or not started, "code": code, "text": text}


def _launch(backend: str, ranks: int, folder: Path) -> list[str]:
    options = ("-np", str(ranks), "--stall-timeout", f"{STALL_SECONDS:g}", "--grace", "1")
    framework = ("--framework", "jax") if backend == "jax" else ()
    return launch_line(MANAGERS.get(backend, OWN), folder, *options, *framework)


def _command(run: Run, folder: Path) -> list[str]:
    parameters = json.dumps({"victim": run.victim, "steps": run.steps, "size": run.size})
    python = str(PYTHONS.get(run.backend, sys.executable))
    words = [run.module, run.kind, run.backend, parameters, str(folder)]
    return [*_launch(run.backend, run.ranks, folder), python, "-m", "tests.hangs.kinds", *words]


def _look(run: Run, folder: Path, job: "subprocess.Popen[bytes]", end: float) -> tuple[float, list[live.Seen]]:
    """Return the time at which a job has begun to hang, and what other tools see then; 0 and nothing if it does not."""
    files = [folder / f"{LAST_STEP}.{rank}" for rank in range(run.ranks)]
    while not all(file.exists() for file in files):
        if job.poll() is not None or time.time() > end:
            return 0.0, []
        time.sleep(0.2)
    begun = max(file.stat().st_ctime for file in files)
    time.sleep(max(begun + LOOK_SECONDS - time.time(), 0))
    return begun, live.look([json.loads(file.read_text()) for file in files])


def _describe(run: Run, folder: Path, begun: float, code: int) -> Row:
    """Return what ddlrun has found: an error if the job has not hung."""
    row: Row = {"backend": run.backend, "ranks": run.ranks, "guilty": sorted(run.guilty), "code": code}
    file = folder / "run" / "examination.json"
    if not begun or not file.exists() or code not in (0, EXIT_STALLED, EXIT_INTERRUPTED):  # an error has ended it
        return row | {"ddlrun": None, "text": (folder / "errors").read_text()[-400:]}
    record = json.loads(file.read_text())
    verdict, text = record["verdict"], str(record["sentence"])
    named = list(verdict["guilty"]) if verdict["hangs"] and code == EXIT_STALLED else []
    judgement = judge(run, named, text) if verdict["hangs"] else Judgement.NOBODY
    return row | {
        "ddlrun": judgement.value, "named": named, "seconds": round(record["time"] - begun - STALL_SECONDS, 1),
        "text": text,
    }  # fmt: skip


def _describe_others(run: Run, seen: list[live.Seen]) -> Row:
    """Return what other tools have found."""
    if not seen:
        return {}
    tools = {"fr_trace": live.trace(seen), "debug": live.debug(seen), "vote": live.vote(seen)}
    return {
        name: {"judgement": judge(run, found.ranks, found.text).value, "named": found.ranks, "text": found.text}
        for name, found in tools.items()
        if found is not None
    }
