"""Faults of a job under ddlrun's own process manager in a real Slurm, whose srun starts the agents."""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm import SlurmCluster, why_not
from tests.conftest import OWN, launch_line
from tests.support.processes import command_line
from tests.support.slurm_jobs import wait_for_output
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.extra, pytest.mark.skipif(bool(why_not()), reason=why_not())]
RANKS = 2
STAY = """
import os, time
print("started", os.environ["RANK"], os.getpid(), flush=True)
time.sleep(3600)
"""
# A process is killed that is some generations above the program of rank 1: itself, its keeper, the agent on h2.
KILLED = {
    "rank": (0, 137, r"failed: rank 1 on h2 \(local rank 0\): killed by SIGKILL"),
    "keeper": (2, 137, "rank 1 on h2 was killed by another process"),
    "agent": (3, 3, "rank 1 on h2 had to end: ddlrun's agent on that host is gone|host h2 was lost"),
}
SCRIPT = """
for fault in {faults}; do
    until test -e begin-$fault; do sleep 0.1; done
    {launch} --run-dir $fault script.py
done
"""


def test_faults_under_ddlruns_own_process_manager(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STAY)
    launch = shlex.join([*launch_line(OWN, tmp_path, "--output", "no-tag", "--ranks-per-host", "1", "--grace", "2")])
    script = SCRIPT.format(faults=" ".join([*KILLED, "scancel"]), launch=launch)
    job = slurm.submit(script, f"--output={tmp_path}/out", f"-N{RANKS}", cwd=tmp_path)
    for number, (fault, (generations, code, line)) in enumerate(KILLED.items(), 1):
        pid = program_of_rank_1(tmp_path, fault, number)
        for _ in range(generations):
            pid = psutil.Process(pid).ppid()
        os.kill(pid, signal.SIGKILL)
        assert exit_code(tmp_path / fault) == code
        wait_for_end(slurm)
        assert len(re.findall(line, (tmp_path / "out").read_text())) == 1
    program_of_rank_1(tmp_path, "scancel", len(KILLED) + 1)
    slurm.run("h1", ["scancel", job], check=True)
    assert exit_code(tmp_path / "scancel") == 143
    wait_for_end(slurm)
    assert f"Slurm job {job} was cancelled" in (tmp_path / "out").read_text()


def program_of_rank_1(folder: Path, fault: str, number: int) -> int:
    """Let the next launch begin; return the process id of rank 1 once all ranks run."""
    (folder / f"begin-{fault}").touch()
    wait_for_output(folder, "started", number * RANKS)
    return int(re.findall(r"(?m)^started 1 (\d+)$", (folder / "out").read_text())[-1])


def exit_code(run: Path) -> int:
    """Return the exit code of a launch, once it has ended."""
    outcome = run / "outcome.json"
    wait_until(outcome.exists)
    code: int = json.loads(outcome.read_text())["exit_code"]
    return code


def wait_for_end(slurm: SlurmCluster) -> None:
    """Wait until no process of a launch is left on any host."""
    wait_until(lambda: not left(slurm), lambda: left(slurm))


def left(slurm: SlurmCluster) -> list[str]:
    """Return the command lines of the programs, keepers, agents, sruns and ddlruns on all hosts."""
    lines = [command_line(pid).replace("\0", " ") for pid in slurm.processes()]
    return [line for line in lines if re.search(r"ddlrun|srun|script\.py", line)]
