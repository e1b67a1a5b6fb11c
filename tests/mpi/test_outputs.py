"""Outputs of every command with --json, and files of runs: valid by published schemas; text has the values of JSON."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddlrun.cli.show import VIEWS
from ddlrun.report.bench import render_bench
from ddlrun.report.progress import progress
from ddlrun.report.tune import render_tune
from docs.reference.contexts import command_contexts
from tests.conftest import OWN, launch_line
from tests.support.json_schemas import NAMES, unsaid, validate, validate_run_folder
from tests.support.seeded_runs import SAMPLES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from ddlrun.network.measurements import (
        BenchResult,
        BestSettings,
        CandidateRecord,
        CollectiveRecord,
        HorovodSettingRecord,
        TuneRecord,
    )

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]
JOB = "--machine ac922-4gpu --topology 4x2x3 --hostfile hosts --env A_TOKEN=x true"
HARDWARE = "*memory_gib *numa_* *packages.* *gpus.vendor *nics"
# Output, by its schema if it has one -> what the text leaves out.
LEFT_OUT = {
    "check": "exit_code findings.check findings.code findings.level findings.message network.interfaces",
    "config-show": "options.source",
    "doctor": "request time verdict.finding ranks.position ranks.snapshot",
    "lint": "code",
    "forecast": "links.*.burst links.*.parallel links.host links.uplink links.aisle workload.overlap wrong_order "
    "decompositions.limit decompositions.bytes decompositions.algorithm",
    "probe": HARDWARE,
    "plan": f"version exported notes variables.A_TOKEN ranks.rank ranks.cores ranks.coords hosts.rack {HARDWARE}",
    "runs": "runs.started runs.program runs.arguments runs.working_folder runs.run_dir runs.pid runs.host",
    "show-command": "variables.A_TOKEN",
    "show-env": "passed_on set_by_rank set.DDLRUN_*",
    "placement": "rank_order hosts_source hosts.rack ranks.rank ranks.coords ranks.cores ranks.threads " + HARDWARE,
    "show-topology": "source",
    "top": "run_dir time findings.severity *.time *.seconds ranks.age ranks.switches ranks.anonymous ranks.faults "
    "ranks.state ranks.function hosts.available",
}
# Command lines with equal results when they are run twice, after their outputs.
COMMANDS = [
    ("check", "check localhost --checks ssh,names,files"),
    ("config-show", "config show"),
    ("config-show", "config show --all -np 4 --bind numa --ssh-port 2222 --env A_TOKEN=x"),
    ("doctor", "doctor RUN"),
    ("lint", "lint rankfile"),
    ("forecast", "network plan --topology 4x4x2 --links 100gbe"),
    ("forecast", "network plan --topology 4x4x2 --links nvlink3,8x200gbe,2:1 --compute 120ms --overlap 0.5"),
    ("forecast", "network plan --topology 4x4x2 --links 100gbe --images 1000 --batch 3"),
    ("probe", "probe"),
    ("probe", "probe --machine ac922-4gpu -H n[0-5]"),
    ("plan", f"launch --dry-run {JOB}"),
    ("runs", "runs"),
    ("placement", f"show placement {JOB}"),
    *((f"show-{view}", f"show {view} {JOB}") for view in VIEWS if view not in ("placement", "schema")),
    ("placement", "show placement --ranks-per-host core true"),
    ("show-schema", "show schema"),
    ("show-topology", "show topology -np 6 --machine dgx-h100 -H a:4,b:2 true"),
    ("top", "top RUN"),
]
# What these print changes from run to run; each has a test below, racks one in tests/unit/test_hierarchy.py.
OTHERS = {"network bench", "network racks", "network tune"}
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
# Ranks that wait for a file.
WAITING = """
import os, sys, time
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.02)
print("started", flush=True)
wait(sys.argv[1])
sys.exit(3 * int(os.environ["RANK"]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with input files, and with the state folder of a run that was examined, and has failed."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "hosts").write_text("".join(f"n{number} slots=4 rack=r{number // 2}\n" for number in range(6)))
    (folder / "rankfile").write_text("rank 0=a slot=*\nrank 2=b slot=0:1,3\nnonsense")
    (folder / "ranks.py").write_text(WAITING)
    words = ["launch", "-np", "2", "--process-manager", OWN, "--sample-interval", "0.1", "ranks.py", "go"]
    with subprocess.Popen([*DDLRUN, *words], cwd=folder, env=state_of(folder), stderr=subprocess.DEVNULL) as job:
        metrics = wait_until(lambda: [*folder.glob("state/ddlrun/runs/*/metrics.jsonl")])[0]
        run(folder, "doctor", "--interval", "0.1")
        (folder / "go").touch()
        assert job.wait() == 3
    metrics.write_text((SAMPLES / "storage.jsonl").read_text())  # the same in each test run
    return folder


def state_of(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": f"{folder}/state"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*DDLRUN, *words]
    return subprocess.run(argv, cwd=folder, env=state_of(folder), capture_output=True, text=True, check=False)


def test_every_output_in_json_is_tested_here() -> None:
    contexts = command_contexts()
    with_json = {name for name in contexts if any(it.name == "as_json" for it in contexts[name].command.params)}
    tested = {name for name in with_json for _, line in COMMANDS if line.startswith(f"{name} ") or line == name}
    assert with_json - tested == OTHERS
    assert {line.split()[1] for _, line in COMMANDS if line.startswith("show ")} == set(VIEWS)


@pytest.mark.parametrize(("output", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_text_and_json_have_the_same_values(folder: Path, output: str, line: str) -> None:
    name, *words = line.replace("RUN", "last").split()
    end = words.index("true") if "true" in words else len(words)
    json_form, text_form = (run(folder, name, *words[:end], *form, *words[end:]) for form in (["--json"], []))
    assert (json_form.returncode, json_form.stderr) == (text_form.returncode, text_form.stderr)
    document = json.loads(without_names(json_form.stdout))
    if output in NAMES:
        validate(document, output)
    assert unsaid(document, without_names(text_form.stdout + text_form.stderr), *LEFT_OUT.get(output, "").split()) == []


def test_metrics_and_logs_have_what_the_run_has(folder: Path) -> None:
    samples = json.loads(run(folder, "top", "--json").stdout)
    metrics = run(folder, "top", "--openmetrics").stdout
    left_out = (
        "run_dir limit findings time *.time *.seconds ranks.size ranks.age ranks.cores ranks.processes ranks.running"
    )
    assert unsaid(samples, metrics, *left_out.split(), "ranks.state", "ranks.function") == []
    assert sorted(run(folder, "logs").stdout.splitlines()) == [
        f"[{rank}@{os.uname().nodename}] started" for rank in (0, 1)
    ]


def test_progress_of_a_measurement_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(shown=True) as show:
        show("links", None)
        show("allreduce p 8 B", 0.5)
    assert capsys.readouterr().out == ""


def without_names(text: str) -> str:
    """Return an output without what differs from one plan to the next: names of runs, and ports."""
    return re.sub(r"\b20\d{6}-[a-z]{8}\b", "NAME", re.sub(r"\b2\d{4}\b", "20000", text))


@pytest.mark.openmpi(5)
@pytest.mark.busy
def test_every_file_of_a_run_folder(mpirun: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    metrics = tmp_path / "run" / "metrics.jsonl"
    script.write_text(RANKS.format(metrics=str(metrics)))
    argv = launch_line(mpirun, tmp_path, "-np", "2", "--sample-interval", "0.1", str(script))
    environ = {**os.environ, **YIELD, "DDL_OPTIONS": "-mode r -dump_iter 6"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, cwd=ROOT, timeout=300)
    assert done.returncode == 3, done.stderr
    files = {"plan.json", "binding.json", "ddl.jsonl", "events.jsonl", "metrics.jsonl", "outcome.json", "run.json"}
    assert validate_run_folder(tmp_path / "run") == files
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["root"]["rank"] == 1


@pytest.mark.openmpi(5)
def test_processes_of_a_running_job(mpirun: str, tmp_path: Path) -> None:
    environ = state_of(tmp_path)
    argv = launch_line(mpirun, tmp_path, "-np", "2", "sleep", "600")
    with subprocess.Popen(argv, env=environ) as job:
        try:
            shown = wait_for_keepers(job, environ)
            text = run(tmp_path, "runs", "--processes").stdout
            left_out = "runs.started runs.seconds runs.program runs.arguments runs.working_folder processes"
            assert unsaid(shown, text, *left_out.split()) == []
            assert [run["ranks"] for run in shown["runs"]][:1] == [2]
        finally:
            job.terminate()


def wait_for_keepers(job: subprocess.Popen[bytes], environ: dict[str, str]) -> dict[str, Any]:
    """Return the output of `ddlrun runs --processes` with the keepers of both ranks; other jobs may run here too."""
    argv, end = [*DDLRUN, "runs", "--processes", "--json"], time.monotonic() + 120
    while True:
        listed = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
        shown: dict[str, Any] = json.loads(listed.stdout)
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
    argv = [*DDLRUN, *words, "--mpirun", mpirun, "--topology", "2"]
    environ = {**os.environ, **YIELD, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.openmpi(5)
@pytest.mark.busy
def test_bench(mpirun: str, tmp_path: Path) -> None:
    words = ["network", "bench", "localhost", "--sizes", "8B,1MiB", "--modes", "r", "--budget", "60s"]
    result = json.loads(measure(mpirun, tmp_path, *words, "--json"))
    slower = ["measured.samples", "measured.quartiles", "measured.algbw", "measured.busbw"]
    assert unsaid(result, render_bench(result), "network", *slower) == []
    best = min(result["measured"], key=lambda row: float(row["seconds"]))
    assert unsaid(best, render_bench(result), "samples", "quartiles") == []
    assert re.search(r"(?m)^inside a host .*bit/s .*bit/s$", measure(mpirun, tmp_path, *words))


@pytest.mark.openmpi(5)
@pytest.mark.busy
def test_tune_and_its_profile(mpirun: str, tmp_path: Path) -> None:
    words = ["network", "tune", "localhost", "--gradient", "64KiB", "--budget", "6s", "--no-horovod"]
    words += ["--save", f"{tmp_path}/profile.json"]
    result = json.loads(measure(mpirun, tmp_path, *words, "--json"))
    assert unsaid(result, render_tune(result), "major", "links.*.latency", "links.*.single") == []
    text = measure(mpirun, tmp_path, *words)
    assert re.match(rf"2x1x1 on {os.uname().nodename}, gradients of 65.5 kB, .*\nlinks: inside a host .*bit/s\n", text)
    assert text.endswith(f"saved:   {tmp_path}/profile.json\n")


def test_text_of_bench_names_what_is_missing_and_what_is_wrong() -> None:
    row: CollectiveRecord = {
        "collective": "allreduce", "algorithm": "mpi", "size": 8, "bytes": 8, "seconds": 1e-6, "samples": 3,
        "quartiles": [1e-6, 2e-6], "correct": False, "algbw": 8e6, "busbw": 4e6, "share": 0.25,
    }  # fmt: skip
    skipped = [("allreduce", "p", 4096), ("allreduce", "mpi", 8192), ("all_gather", "p", 8), ("all_gather", "p", 16)]
    result: BenchResult = {
        "topology": "2x1x1", "links": {}, "network": "", "measured": [row], "skipped": skipped, "note": "",
        "seconds": 2.0,
    }  # fmt: skip
    text = render_bench(result)
    assert re.search(r"(?m)^8 B +1 us +8 MB/s +4 MB/s +25 %$", text)
    assert "\n  allreduce p from 4 KiB, mpi from 8 KiB\n  all-gather from 8 B\n" in text
    assert text.endswith("WRONG RESULTS: allreduce mpi 8 B\n")


def test_text_of_tune_names_all_its_results() -> None:
    best: BestSettings = {"topology": "2x1x1", "mode": "p", "tuning": "bucket=4M", "seconds": 0.5}
    measured: list[CandidateRecord] = [{**best, "runs": 3, "expected": 0.25, "seconds": 0.5 + n} for n in range(14)]
    settings: HorovodSettingRecord = {"variables": {"HOROVOD_CYCLE_TIME": "3.5"}, "seconds": 0.75}
    record: TuneRecord = {
        "measured": measured, "best": best, "complete": False, "links": {}, "major": 5,
        "topology": "2x1x1", "default_seconds": 0.5, "seconds": 60.0, "gradient": 2**20, "profile": None,
        "hosts": ["a", "b"],
        "horovod": {"measured": [settings], "best": settings, "default_seconds": 1.5, "complete": False},
    }  # fmt: skip
    text = render_tune(record)
    assert text.startswith("2x1x1 on a,b, gradients of 1.05 MB, searched for 60 s\n\nXxYxZ ")
    assert text.endswith(
        "... and 2 more, the slowest with 13.5 s\nthe budget ended the search; give a longer --budget to continue\n\n"
        "best:    2x1x1, mode p, bucket=4M: 500 ms per step, as launch without a profile\n"
        "Horovod: HOROVOD_CYCLE_TIME=3.5: 750 ms per step; with its defaults: 1.5 s; the budget ended the search\n"
    )
