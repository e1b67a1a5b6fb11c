"""Jobs that a real Slurm ends, warns or requeues, or that lose a host."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm import SlurmCluster, why_not
from tests.conftest import MPIRUNS, launch_line
from tests.support.slurm_jobs import ENDLESS, RANK_REPORT, Launch, leftovers, wait_for_output
from tests.support.waiting import wait_until

ONLY_4, ONLY_5 = pytest.mark.openmpi(4), pytest.mark.openmpi(5)
pytestmark = [pytest.mark.extra, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.mark.parametrize("slurmd", ["silent", "down", "restarted"])
def test_a_host_that_is_down_is_named_and_replaced(slurm: SlurmCluster, tmp_path: Path, slurmd: str) -> None:
    ddlrun = f"{sys.executable} -m ddlrun"
    script = f"{ddlrun} check --checks ssh"
    spare = f"{ddlrun} launch --quiet --topology 1x3 --spare-hosts extra uname -n"
    job = slurm.submit(
        f"until [ -e {tmp_path}/go ]; do sleep 0.1; done\n{script}\n{spare}\n{ddlrun} launch uname -n",
        f"--output={tmp_path}/out", "-N4", "--no-kill", cwd=tmp_path,
    )  # fmt: skip
    slurm.wait_for(job, "RUNNING")
    slurm.kill("slurmd.h2")
    if slurmd != "silent":
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=DOWN", "Reason=test"], check=True)
    if slurmd == "restarted":  # idle again, but lost for the job
        slurm.start_slurmd("h2")
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=RESUME"], check=True)
        state = ["sinfo", "--noheader", "--nodes=h2", "--format=%t"]
        slurm.settle(lambda: slurm.run("h1", state).stdout == "idle\n")
    (tmp_path / "go").touch()
    slurm.wait_for(job, "FAILED", "NODE_FAIL", timeout=300)
    if slurmd != "restarted":
        slurm.start_slurmd("h2")
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=RESUME"])
    slurm.wait_until_idle()
    output = (tmp_path / "out").read_text()
    assert "h4 takes the place of h2" in output
    assert {"h1", "h3", "h4"} <= {line.rpartition("] ")[2] for line in output.splitlines()}
    assert "ddlrun: error: host h2: " in output
    assert "host h1" not in output


@pytest.mark.parametrize("reason", [pytest.param("scancel", marks=ONLY_5), pytest.param("node", marks=ONLY_4)])
def test_a_job_that_slurm_ends(slurm: SlurmCluster, launch: Launch, tmp_path: Path, reason: str) -> None:
    script = launch(ENDLESS, "--quiet", "--ranks-per-host", "1")
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N4", "--no-requeue", cwd=tmp_path)
    wait_for_output(tmp_path, "up", 4)
    if reason == "scancel":
        slurm.run("h1", ["scancel", job], check=True)
    else:
        slurm.run("h1", ["scontrol", "update", "NodeName=h4", "State=DOWN", "Reason=test"], check=True)
    wait_for_output(tmp_path, "exit code")
    slurm.wait_for(job)
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    if reason == "node":
        slurm.run("h1", ["scontrol", "update", "NodeName=h4", "State=RESUME"])
        slurm.wait_until_idle()
        assert f"Slurm job {job} " in outcome["reason"]
    else:
        assert (outcome["exit_code"], outcome["reason"]) == (143, f"Slurm job {job} was cancelled")
        assert (tmp_path / "run" / "report.txt").read_text().startswith("ddlrun: ended after ")
    wait_until(lambda: not leftovers(slurm, tmp_path), lambda: leftovers(slurm, tmp_path))


@pytest.mark.parametrize(
    "target", [pytest.param([], marks=ONLY_4, id="steps"), pytest.param(["--batch"], marks=ONLY_5, id="script")]
)
def test_a_warning_reaches_each_rank_once(
    slurm: SlurmCluster, launch: Launch, tmp_path: Path, target: list[str]
) -> None:
    script = f"exec {launch(ENDLESS, '--quiet', '--ranks-per-host', '1')}"
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N4", cwd=tmp_path)
    wait_for_output(tmp_path, "up", 4)
    slurm.run("h1", ["scancel", *target, "--signal=USR1", job], check=True)
    wait_for_output(tmp_path, "warned", 4)
    slurm.run("h1", ["scancel", job], check=True)
    slurm.wait_for(job, "CANCELLED")
    warned = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("warned")]
    assert sorted(warned) == [f"warned {rank}" for rank in range(4)]


def test_a_requeued_job_restarts(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    text = f"{RANK_REPORT}\nimport time\nif e['DDLRUN_RESTART'] == '0': time.sleep(60)\n"
    script = launch(text, "--quiet", "--ranks-per-host", "1", "--restarts", "1")
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N2", "--open-mode=append", "--requeue", cwd=tmp_path)
    wait_for_output(tmp_path, "h2 0 1 2 0")
    slurm.requeue(job)
    slurm.wait_for(job, "COMPLETED", timeout=300)
    assert (tmp_path / "out").read_text().count(" 2 1\n") == 2
    assert (tmp_path / "run" / "requeue-1" / "outcome.json").exists()


def test_the_time_limit(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Both majors run at once, as the shortest limit of Slurm is a minute."""
    (tmp_path / "script.py").write_text(ENDLESS)

    def submit(major: int) -> str:
        argv = launch_line(
            MPIRUNS[major], tmp_path / str(major), "--quiet", "--ranks-per-host", "1", f"{tmp_path}/script.py"
        )
        options = (f"--output={tmp_path}/{major}/out", "-N2", "--time=1")
        return slurm.submit(f"exec {shlex.join(argv)}", *options, cwd=tmp_path)

    for major in MPIRUNS:
        (tmp_path / str(major)).mkdir()
    jobs = {major: submit(major) for major in MPIRUNS}
    queued = [sys.executable, "-m", "ddlrun", "submit", "--wait", "--gpus", "0", "--time", "1", "1x2"]
    submit_argv = slurm.argv("h1", [*queued, "--allow-run-as-root", f"{tmp_path}/script.py"], cwd=tmp_path)
    follower = subprocess.Popen(submit_argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for major, job in jobs.items():
        assert slurm.wait_for(job, timeout=300) == "TIMEOUT"
        output = (tmp_path / str(major) / "out").read_text()
        assert f"Slurm job {job} has reached its time limit (00:01:00)" in output
        assert json.loads((tmp_path / str(major) / "run" / "outcome.json").read_text())["exit_code"] == 124
    messages = follower.communicate(timeout=300)[1]
    assert (follower.returncode, "TIMEOUT, exit code 124" in messages) == (124, True), messages
    wait_until(lambda: not leftovers(slurm, tmp_path), lambda: leftovers(slurm, tmp_path))
