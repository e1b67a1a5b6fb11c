"""-dump_iter and -rebind_iter in real jobs: the figures of reports, and a learner that moves."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MPIRUNS, launch_line
from tests.ddl.test_mpi import ROOT, started
from tests.support import needs
from tests.support.cpus import CORES

pytestmark = pytest.mark.openmpi(5)

SLOW_RANKS = ROOT / "tests" / "ddl" / "slow_ranks.py"
STEPS = """
import numpy as np
from ddlrun import ddl
with ddl.init({init}):
    x = np.ones(30_000, np.float32)
    for step in range({steps}):
        ddl.all_reduce(1.0)  # a loss is not an iteration of its own
        {reduce}
"""
BLOCKING = "ddl.all_reduce(x, in_place=True)"
REDUCES = {
    "blocking": BLOCKING,
    "handles": "hs = [ddl.start([x]), ddl.start([x.copy()])]; [h.wait() for h in hs]",
    "tested": "h = ddl.start([x])\n        while not h.test(): pass\n        h.wait()",
}
MODES = {
    "c:4": [r"X +4  halving +0.18 MB"],
    "m:2x2": [r"X +2  MPI +0.12 MB", r"Y +2  MPI +0.06 MB"],
    "b:2x2": [r"XYZ +4  MPI_Allreduce +0.12 MB"],
}
WIRE = "'-mode r:2x2 -dump_iter 12', tuning='flat=64K,wire=bfloat16:Y'"


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    """Return the reports of several jobs that the same four ranks run one after the other."""
    jobs = {name: STEPS.format(init="'-mode r:2x2 -dump_iter 4'", steps=13, reduce=REDUCES[name]) for name in REDUCES}
    for mode in MODES:
        jobs[mode] = STEPS.format(init=f"'-mode {mode} -dump_iter 6'", steps=13, reduce=BLOCKING)
    jobs["wire"] = STEPS.format(init=WIRE, steps=13, reduce=BLOCKING)
    begin = "import os, sys\nif os.environ['OMPI_COMM_WORLD_RANK'] == '0': print('@{}', file=sys.stderr, flush=True)\n"
    done = started(MPIRUNS[5], 4, "-c", "".join(begin.format(name) + job for name, job in jobs.items()))
    assert done.returncode == 0, done.stderr
    texts = [part.partition("\n") for part in done.stderr.split("@")[1:]]
    assert [name for name, _, _ in texts] == [*jobs]
    return {name: text for name, _, text in texts}


@pytest.mark.parametrize("reduce", REDUCES)
def test_every_n_iterations_rank_0_reports_by_dimension(reports: dict[str, str], reduce: str) -> None:
    report = reports[reduce]
    assert re.findall(r"iterations (\d+ to \d+), 2x2x1, mode r: ", report) == ["2 to 5", "6 to 9", "10 to 13"]
    sent = "0.24 MB" if reduce == "handles" else "0.12 MB"
    assert len(re.findall(rf"  X +2  ring +{sent} .* ms .* MB/s\n  Y +2  ring ", report)) == 3
    assert len(re.findall(r"most jitter: rank \d on \S+, [\d.]+% of its computing time", report)) == 3


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_names_its_algorithm(reports: dict[str, str], mode: str) -> None:
    report = reports[mode]
    assert [len(re.findall(line, report)) for line in MODES[mode]] == [2] * len(MODES[mode]), report


def test_16_bits_on_the_wire_halve_the_bytes(reports: dict[str, str]) -> None:
    report = reports["wire"]
    assert re.search(r"  X +2  ring +0.12 MB .*\n  Y +2  ring bfloat16 +0.03 MB ", report), report


TORCH = """
import torch
from ddlrun import ddl
from ddlrun.ddl.torch import DistributedOptimizer
ddl.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters()), bucket_bytes=20_000)
for step in range(13):
    loss = model(torch.ones(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    ddl.all_reduce(loss.item(), "avg")
"""


@pytest.mark.extra
def test_a_step_of_the_optimizer_is_one_iteration(mpirun: str) -> None:
    needs.package("torch", "torch==2.13.0")
    done = started(mpirun, 2, "-c", TORCH, DDL_OPTIONS="-mode r:2 -dump_iter 6")
    assert re.findall(r"iterations (\d+ to \d+), ", done.stderr) == ["2 to 7", "8 to 13"], done.stderr


def test_ranks_that_end_early_or_late_lose_nothing(mpirun: str) -> None:
    """Without free, and with an iteration that only some ranks count."""
    code = STEPS.format(init="", steps=9, reduce=BLOCKING).replace("with ddl.init():", "ddl.init()\nif True:")
    done = started(mpirun, 4, "-c", code, DDL_OPTIONS="-mode r:4 -dump_iter 8 -rebind_iter 2")
    assert (done.returncode, done.stderr.count("iterations 2 to 9")) == (0, 1), done.stderr
    uneven = STEPS.format(
        init="",
        steps=9,
        reduce="h, g = ddl.start([x]), ddl.start([x.copy()])\n        h.wait(); g.wait()\n"
        "        h = ddl.start([x])\n        while not h.test(): pass\n        ddl.rank() % 2 and h.wait()",
    )
    done = started(mpirun, 4, "-c", uneven, DDL_OPTIONS="-mode r:4 -dump_iter 2 -rebind_iter 1")
    assert done.returncode == 0, done.stderr
    assert "iterations 2 to 3" in done.stderr


def test_one_learner_reports_too() -> None:
    code = STEPS.format(init="", steps=5, reduce=BLOCKING)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environ, "DDL_OPTIONS": "-dump_iter 2 -rebind_iter 1"},
        capture_output=True, text=True, timeout=300, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stderr.count("1x1x1, mode r") == 2


@pytest.mark.extra  # hundreds of iterations while two processes keep a core busy
def test_a_learner_moves_away_from_a_busy_process(mpirun: str, tmp_path: Path) -> None:
    if len(CORES) < 2:
        needs.skip("one core, and none to move to")
    cores = str(len(CORES) - 1)
    argv = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "2", "--reserve-cores", cores)
    done = subprocess.run(
        [*argv, sys.executable, str(SLOW_RANKS)], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
        env={**os.environ, "DDL_OPTIONS": "-mode r:2 -rebind_iter 5 -dump_iter 20"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    moved = re.search(
        r"rank 0 on (\S+) is slow, [\d.]+ times the median in 3 checks: others run on its CPUs (\S+) \(its threads "
        r"wait \d+% of the time for one\); moved from CPUs (\S+) to (\S+), kept by the plan, with (\d+) threads",
        done.stderr,
    )
    assert moved, done.stderr
    host, busy, old, new, threads = moved.groups()
    assert old == busy != new
    assert int(threads) > 1
    assert f"[{old}] to [{new}], all threads: True" in done.stdout
    # Other work on this machine decides whether the move helps. In either case it is judged.
    assert re.search(
        r"times the median after the move, [\d.]+ before(: no gain, moved back|; it stays on) ", done.stderr
    )
    events = [json.loads(line) for line in (tmp_path / "run" / "ddl.jsonl").read_text().splitlines()]
    # Rank 1 may be slow for a while too, on a machine with other work.
    slow = [(event["rank"], event["host"], event["cause"]) for event in events if event["event"] == "slow"]
    assert (0, host, "queue") in slow
    iterations = next(event for event in events if event["event"] == "iterations")
    assert [dimension["dimension"] for dimension in iterations["dimensions"]] == ["X"]
    assert len(iterations["compute"]) == 2
