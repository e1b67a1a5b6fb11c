"""The real Horovod under `ddlrun launch`, on one host; over two hosts in test_hosts_frameworks.py."""

import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.report.tune import render_tune
from tests.conftest import launch_line, need_horovod
from tests.support.json_schemas import unsaid

ROOT = Path(__file__).parents[2]
# Every key that Horovod can be seen to follow has another value than Horovod's own.
SETTINGS = """
controller: mpi
params: {fusion_threshold_mb: 8, cycle_time_ms: 3, cache_capacity: 0, hierarchical_allreduce: true,
  hierarchical_allgather: true, torus_allreduce: true}
autotune: {enabled: true, log_file: tuned.csv, warmup_samples: 2, steps_per_sample: 5, bayes_opt_max_samples: 3}
timeline: {filename: timeline.json, mark_cycles: true}
stall_check: {enabled: true, warning_time_seconds: 1, shutdown_time_seconds: 60}
library_options: {mpi_threads_disable: true, num_nccl_streams: 2, thread_affinity: "1,0"}
logging: {level: INFO, hide_timestamp: true}
"""
# Samples of 5 steps, and five of them a score: Horovod leaves 2 scores out, so 100 steps give 2.
SCRIPT = """
import time
import horovod.torch as hvd
import torch
hvd.init()
hvd.allreduce(torch.ones(1), name="first")
if hvd.rank() == 1:
    time.sleep(3)
for step in range(120):
    hvd.allreduce(torch.ones(4), name="gradient")
print(hvd.rank(), hvd.mpi_threads_supported(), flush=True)
hvd.shutdown()
"""


@pytest.fixture(autouse=True)
def built() -> None:
    need_horovod()


def launch(mpirun: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*launch_line(mpirun, folder, "--output", "no-tag", "--ranks-per-host", "core"), *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def rows(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text().splitlines())]


@pytest.mark.openmpi(5)  # test_examples.py trains under both
def test_the_example_trains(mpirun: str, tmp_path: Path) -> None:
    settings = ["--timeline-filename", "timeline.json", "--autotune", "--autotune-log-file", "tuned.csv"]
    settings += ["--autotune-warmup-samples", "0", "--autotune-steps-per-sample", "5"]
    example = str(ROOT / "docs" / "examples" / "digits_horovod.py")
    done = launch(mpirun, tmp_path, *settings, example, "--batch", "128", "--epochs", "10", "--save", "net.pt")
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"done: accuracy ([\d.]+) % on 360 held-out images, [\d,]+ images/s, 2 ranks", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 95
    assert (tmp_path / "net.pt").stat().st_size > 4 * (65 * 64 + 65 * 10)
    assert "MPI_ALLREDUCE" in {event.get("name") for event in json.loads((tmp_path / "timeline.json").read_text())}
    assert rows(tmp_path / "tuned.csv")
    assert "has no effect" not in done.stderr


@pytest.mark.openmpi(5)
def test_tune_measures_every_setting(mpirun: str, tmp_path: Path) -> None:
    words = ["network", "tune", "localhost", "--topology", "2", "--allow-run-as-root", "--mpirun", mpirun, "--json"]
    argv = [
        sys.executable,
        "-m",
        "ddlrun",
        *words,
        "--gradient",
        "64KiB",
        "--budget",
        "1200s",
        "--horovod",
        "--save",
        "-",
    ]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["horovod"]["complete"]
    assert len(record["horovod"]["measured"]) == 5
    assert unsaid(record["horovod"], render_tune(record), "measured") == []


@pytest.mark.openmpi(4)
def test_horovod_follows_its_file(mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "horovod.yaml").write_text(SETTINGS)
    (tmp_path / "settings.py").write_text(SCRIPT)
    done = launch(mpirun, tmp_path, "--config-file", "horovod.yaml", "settings.py")
    assert done.returncode == 0, done.stderr
    said = {line for line in done.stdout.splitlines() if not line.startswith("[")}
    assert said == {"0 False", "1 False"}  # no threads of MPI

    fixed = ("cache_enabled", "cycle_time_ms", "tensor_fusion_threshold")
    assert [[float(row[name]) for name in fixed] for row in rows(tmp_path / "tuned.csv")] == [[0, 3, 8]] * 2
    names = [event.get("name") for event in json.loads((tmp_path / "timeline.json").read_text())]
    assert "CYCLE_START" in names
    log = done.stdout + done.stderr
    assert re.search(r"(?m)^\[I \S+\] Autotuner: Warming up \(1 remaining\)$", log)  # and no time before the level
    assert sorted(re.findall(r"Background thread affinity (\d)", log)) == ["0", "1"]
    assert "waiting for remainder of ranks for more than 1 seconds" in log

    notes = re.findall(r"(?m)^ddlrun: note: (--\S+) has no effect: horovod.torch is built without (\w+)$", done.stderr)
    assert sorted(notes) == [
        ("--hierarchical-allgather", "GPUs"), ("--hierarchical-allreduce", "NCCL"), ("--num-nccl-streams", "NCCL"),
        ("--torus-allreduce", "NCCL"),
    ]  # fmt: skip


def ask_build(**env: str) -> str:
    argv = [sys.executable, "-m", "ddlrun", "launch", "--check-build"]
    environ = {**os.environ, **env}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("Horovod 0.28.1:\n")[2]


def test_what_the_build_says(tmp_path: Path) -> None:
    no_library = "0.28.1: does not work: its library is not built: see docs/how-to/install-horovod.sh\n"
    shown = ask_build()
    assert shown.startswith(f"    [X] PyTorch 0.28.1: mpi\n    [ ] TensorFlow {no_library}")
    assert re.search(r"Controllers:\n    \[X\] MPI\n", shown)
    assert "[ ] NCCL" in shown
    # What a plain `pip install horovod` leaves: everything but the library.
    package = importlib.util.find_spec("horovod")
    assert package is not None
    folder = Path(str(package.origin)).parent
    shutil.copytree(folder, tmp_path / "horovod", ignore=shutil.ignore_patterns("mpi_lib*.so"))
    assert ask_build(PYTHONPATH=str(tmp_path)).startswith(f"    [ ] PyTorch {no_library}")


def test_the_installation_says_what_is_missing(tmp_path: Path) -> None:
    """Each tool that the script asks for, hidden in its turn."""
    tools = tmp_path / "tools"
    tools.mkdir()
    script = str(ROOT / "docs" / "how-to" / "install-horovod.sh")
    for tool in ("sh", "dirname"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    python = tools / "python"
    python.write_text("#!/bin/sh\nexit 1\n")  # one that has no torch
    python.chmod(0o755)
    for tool in ("g++", "make", "cmake", "mpicxx", "torch"):
        argv, env = ["sh", script, str(python)], {"PATH": str(tools)}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert re.match(rf"install-horovod.sh: no .*{re.escape(tool)}.*; mend: .* install", done.stderr)
        (tools / tool).symlink_to("/bin/true")
    assert os.listdir(tmp_path) == ["tools"]
