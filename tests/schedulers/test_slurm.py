"""A real Slurm on the test cluster: its jobs over racks, and ddlrun inside of them."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm import SlurmCluster, why_not
from tests.conftest import launch_line

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_job_over_all_hosts_sees_its_list(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = 'echo "$SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE"; srun hostname | sort | uniq -c | xargs'
    job = slurm.submit(script, "-N4", "--ntasks-per-node=2", f"--output={tmp_path}/out")
    assert slurm.wait_for(job) == "COMPLETED"
    assert (tmp_path / "out").read_text() == "h[1-4] 2(x4)\n2 h1 2 h2 2 h3 2 h4\n"


def test_exit_code_of_a_finished_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = slurm.submit("exit 7", f"--output={tmp_path}/out")
    assert (slurm.wait_for(job), slurm.job(job)["ExitCode"]) == ("FAILED", "7:0")


def test_topology_has_two_racks(slurm: SlurmCluster) -> None:
    lines = slurm.run("h2", ["scontrol", "show", "topology"]).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["SwitchName=rack0", "Level=0", "LinkSpeed=1", "Nodes=h[1-2]"],
        ["SwitchName=rack1", "Level=0", "LinkSpeed=1", "Nodes=h[3-4]"],
        ["SwitchName=spine", "Level=1", "LinkSpeed=1", "Nodes=h[1-4]", "Switches=rack[0-1]"],
    ]


def test_gpus_are_counted(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = slurm.submit('echo "$SLURM_GPUS_ON_NODE"', "-N2", "--gpus-per-node=2", f"--output={tmp_path}/out")
    assert slurm.wait_for(job) == "COMPLETED"
    assert (tmp_path / "out").read_text() == "2\n"


# Each rank tells where it is, on which CPUs, and what it was told.
TELL = """
import os
from mpi4py import MPI
world, e = MPI.COMM_WORLD, os.environ
cpus = sorted(os.sched_getaffinity(0))
print(world.rank, os.uname().nodename, *cpus, world.allreduce(1), e["DDLRUN_RESTART"], flush=True)
"""
# Each rank says which signals came, and would stay for ever.
WAIT = """
import os, signal, sys, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
signal.signal(signal.SIGUSR1, lambda *_: print("warned", rank, flush=True))
print("up", rank, flush=True)
while True:
    time.sleep(0.1)
"""
Launch = Callable[..., str]


@pytest.fixture
def launch(mpirun: str, tmp_path: Path) -> Launch:
    """Return the line of a batch script that launches a text of Python."""

    def line(text: str, *options: str) -> str:
        (tmp_path / "script.py").write_text(text)
        argv = [*launch_line(mpirun, tmp_path, "--no-tag-output"), *options, f"{tmp_path}/script.py"]
        return shlex.join(argv)

    return line


def run(slurm: SlurmCluster, folder: Path, script: str, *options: str) -> tuple[str, list[str]]:
    """Run a job to its end; return its state and the lines of its output."""
    job = slurm.submit(script, f"--output={folder}/out", *options, cwd=folder)
    return slurm.wait_for(job), (folder / "out").read_text().splitlines()


def until(folder: Path, words: str, count: int = 1, name: str = "out") -> None:
    """Wait until words stand so often in a job's output."""
    deadline = time.monotonic() + 30
    while not (folder / name).exists() or (folder / name).read_text().count(words) < count:
        assert time.monotonic() < deadline, (folder / name).read_text()
        time.sleep(0.05)


def left(slurm: SlurmCluster, folder: Path) -> str:
    """Return the processes of the folder's script on all hosts (they share one process table)."""
    return slurm.run("h1", ["sh", "-c", f"pgrep -af '[s]cript.py' | grep -F {folder} || true"]).stdout


RANKS = [f"{rank} h{rank // 2 + 1} {rank % 2} 8 0" for rank in range(8)]


def test_a_job_gives_hosts_tasks_and_racks(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    state, lines = run(slurm, tmp_path, launch(TELL), "-N4", "--ntasks-per-node=2")
    assert (state, sorted(lines[-8:])) == ("COMPLETED", RANKS)
    assert lines[0].startswith("2x2x2: 8 ranks on h[1-4], 2 per host (the slots of Slurm job ")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reasons"]["launcher"].startswith("srun: Slurm job ")


@pytest.mark.parametrize("way", ["auto", "ssh"])
def test_more_ranks_than_tasks(slurm: SlurmCluster, launch: Launch, tmp_path: Path, way: str) -> None:
    line = launch(TELL, "--quiet", "--topology", "2x2x2", "--launcher", way)
    assert run(slurm, tmp_path, f"{line} | sort", "-N4") == ("COMPLETED", RANKS)


def test_inside_of_salloc_and_of_steps(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = shlex.split(launch(TELL, "--quiet", "--topology", "2x2x2"))
    for number, step in enumerate(([], ["srun", "-N1", "-n1", "-w", "h1"])):  # the step holds its cores
        argv = ["salloc", "-Q", "-N4", *step, *[word.replace("/run", f"/run{number}") for word in line]]
        done = slurm.run("h1", argv, cwd=tmp_path)
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RANKS), done.stderr


def test_srun_of_ddlrun_starts_nothing(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    state, lines = run(slurm, tmp_path, f"srun {launch(TELL)}", "-N2", "--ntasks-per-node=2")
    assert state == "FAILED"
    assert sum("srun starts ddlrun 4 times" in line for line in lines) == 4
    assert not (tmp_path / "run").exists()


def test_hosts_that_are_named_win(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(TELL, "--quiet", "-H", "h3,h2", "--accelerators", "1")
    assert run(slurm, tmp_path, f"{line} | sort", "-N3")[1] == ["0 h3 0 1 2 0", "1 h2 0 1 2 0"]
    foreign = launch(TELL, "--quiet", "-H", "h4,localhost", "-np", "2").replace("/run", "/run2")
    assert run(slurm, tmp_path, f"{foreign} | sort", "-w", "h1")[1] == ["0 h4 0 1 2 0", "1 h1 0 1 2 0"]


def test_cyclic_ranks_and_whole_racks(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(TELL, "--quiet", "--topology", "2x1x2")
    lines = run(slurm, tmp_path, f"{line} | sort", "-N4", "--ntasks-per-node=2", "--distribution=cyclic")[1]
    assert lines == ["0 h1 0 4 0", "1 h3 0 4 0", "2 h1 1 4 0", "3 h3 1 4 0"]


def test_each_task_of_an_array_is_a_job(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(TELL, "--quiet", "--topology", "1x2").replace("/run", "/run$SLURM_ARRAY_TASK_ID", 1)
    job = slurm.submit(
        line.replace("'", ""), f"--output={tmp_path}/out.%a", "-N2", "--exclusive", "--array=0-1", cwd=tmp_path
    )
    for number in (0, 1):
        slurm.wait_for(f"{job}_{number}", "COMPLETED")
    told = [sorted((tmp_path / f"out.{number}").read_text().split()[1::6]) for number in (0, 1)]
    assert sorted(told) == [["h1", "h2"], ["h3", "h4"]]


@pytest.mark.parametrize(
    ("options", "topology", "says"),
    [
        (("-N2", "-n3"), "2x2", "topology 2x2x1 puts 2 ranks on each host, but h2 offers 1 slot"),
        (("-N4",), "1x3x2", "needs 6 hosts (3 hosts per rack x 2 racks), but 4 are there"),
    ],
)
def test_a_job_that_is_too_small(
    slurm: SlurmCluster, launch: Launch, tmp_path: Path, options: tuple[str, ...], topology: str, says: str
) -> None:
    state, lines = run(slurm, tmp_path, launch(TELL, "--topology", topology), *options)
    assert state == "FAILED"
    assert says in lines[0]
    assert lines[0].endswith("would fit")


@pytest.mark.parametrize("how", ["silent", "down", "back"])
def test_a_host_that_is_down_is_named_and_replaced(slurm: SlurmCluster, tmp_path: Path, how: str) -> None:
    ddlrun = f"{sys.executable} -m ddlrun"
    script = f"{ddlrun} check --only ssh"
    spare = f"{ddlrun} launch --quiet --topology 1x3 --spare-hosts extra uname -n"
    job = slurm.submit(
        f"until [ -e {tmp_path}/go ]; do sleep 0.1; done\n{script}\n{spare}\n{ddlrun} launch uname -n",
        f"--output={tmp_path}/out", "-N4", "--no-kill", cwd=tmp_path,
    )  # fmt: skip
    slurm.wait_for(job, "RUNNING")
    slurm.kill("slurmd.h2")
    if how != "silent":
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=DOWN", "Reason=test"], check=True)
    if how == "back":  # idle for Slurm, and lost for the job
        slurm.start_slurmd("h2")
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=RESUME"], check=True)
        state = ["sinfo", "--noheader", "--nodes=h2", "--format=%t"]
        slurm.settle(lambda: slurm.run("h1", state).stdout == "idle\n")
    (tmp_path / "go").touch()
    slurm.wait_for(job, "FAILED", "NODE_FAIL", timeout=90)
    if how != "back":
        slurm.start_slurmd("h2")
        slurm.run("h1", ["scontrol", "update", "NodeName=h2", "State=RESUME"])
    slurm.wait_until_idle()
    said = (tmp_path / "out").read_text()
    assert "h4 takes the place of h2" in said
    assert {"h1", "h3", "h4"} <= {line.rpartition("] ")[2] for line in said.splitlines()}
    assert "ddlrun: error: host h2: " in said
    assert "host h1" not in said


@pytest.mark.parametrize("how", ["scancel", "node"])
def test_a_job_that_slurm_ends(slurm: SlurmCluster, launch: Launch, tmp_path: Path, how: str) -> None:
    script = launch(WAIT, "--quiet", "--accelerators", "1")
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N4", "--no-requeue", cwd=tmp_path)
    until(tmp_path, "up", 4)
    if how == "scancel":
        slurm.run("h1", ["scancel", job], check=True)
    else:
        slurm.run("h1", ["scontrol", "update", "NodeName=h4", "State=DOWN", "Reason=test"], check=True)
    until(tmp_path, "exit code")
    slurm.wait_for(job)
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    if how == "node":
        slurm.run("h1", ["scontrol", "update", "NodeName=h4", "State=RESUME"])
        slurm.wait_until_idle()
        assert f"Slurm job {job} " in outcome["reason"]
    else:
        assert (outcome["exit_code"], outcome["reason"]) == (143, f"Slurm job {job} was cancelled")
        assert (tmp_path / "run" / "report.txt").read_text().startswith("ddlrun: ended after ")
    assert left(slurm, tmp_path) == ""


@pytest.mark.parametrize("to", [[], ["--batch"]], ids=["steps", "script"])
def test_a_warning_reaches_each_rank_once(slurm: SlurmCluster, launch: Launch, tmp_path: Path, to: list[str]) -> None:
    script = f"exec {launch(WAIT, '--quiet', '--accelerators', '1')}"
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N4", cwd=tmp_path)
    until(tmp_path, "up", 4)
    slurm.run("h1", ["scancel", *to, "--signal=USR1", job], check=True)
    until(tmp_path, "warned", 4)
    time.sleep(1)
    slurm.run("h1", ["scancel", job], check=True)
    slurm.wait_for(job, "CANCELLED")
    warned = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("warned")]
    assert sorted(warned) == [f"warned {rank}" for rank in range(4)]


def test_a_requeued_job_goes_on(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    text = f"{TELL}\nimport time\nif e['DDLRUN_RESTART'] == '0': time.sleep(60)\n"
    script = launch(text, "--quiet", "--accelerators", "1", "--restarts", "1")
    job = slurm.submit(script, f"--output={tmp_path}/out", "-N2", "--open-mode=append", "--requeue", cwd=tmp_path)
    until(tmp_path, "h2 0 1 2 0")
    slurm.requeue(job)
    slurm.wait_for(job, "COMPLETED", timeout=200)
    assert (tmp_path / "out").read_text().count(" 2 1\n") == 2
    assert (tmp_path / "run" / "requeue-1" / "outcome.json").exists()


@pytest.mark.slow  # Slurm knows minutes alone
def test_the_time_limit(slurm: SlurmCluster, tmp_path: Path) -> None:
    from tests.conftest import MPIRUNS  # noqa: PLC0415 - both at once, for the minute's sake

    (tmp_path / "script.py").write_text(WAIT)

    def submit(major: int) -> str:
        argv = launch_line(
            MPIRUNS[major], tmp_path / str(major), "--quiet", "--accelerators", "1", f"{tmp_path}/script.py"
        )
        options = (f"--output={tmp_path}/{major}/out", "-N2", "--time=1", "--signal=B:USR1@30")
        return slurm.submit(f"exec {shlex.join(argv)}", *options, cwd=tmp_path)

    for major in MPIRUNS:
        (tmp_path / str(major)).mkdir()
    jobs = {major: submit(major) for major in MPIRUNS}
    queued = [sys.executable, "-m", "ddlrun", "submit", "--wait", "--gpus", "0", "--time", "1", "1x2"]
    waiting = slurm.argv("h1", [*queued, "--allow-run-as-root", f"{tmp_path}/script.py"], cwd=tmp_path)
    followed = subprocess.Popen(waiting, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for major, job in jobs.items():
        state = slurm.wait_for(job, timeout=120)
        if state == "FAILED" and not (tmp_path / str(major) / "out").read_text():  # warned before Python has begun
            job = submit(major)  # noqa: PLW2901 - the same once more
            state = slurm.wait_for(job, timeout=120)
        assert state == "TIMEOUT"
        said = (tmp_path / str(major) / "out").read_text()
        assert f"Slurm job {job} has reached its time limit (00:01:00)" in said
        assert said.count("warned") == 2
        assert json.loads((tmp_path / str(major) / "run" / "outcome.json").read_text())["exit_code"] == 124
    said = followed.communicate(timeout=60)[1]
    assert (followed.returncode, "TIMEOUT, exit code 124" in said) == (124, True), said
    assert left(slurm, tmp_path) == ""


def test_show_and_gen_rankfile_inside_of_a_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    ddlrun = f"{sys.executable} -m ddlrun"
    script = f"{ddlrun} show hosts; {ddlrun} show topology; {ddlrun} check; {ddlrun} gen-rankfile 1x2x2 2>&1"
    state, lines = run(slurm, tmp_path, script, "-N4", "--ntasks-per-node=1")
    assert state == "COMPLETED", lines
    assert "h3  rack rack1  host 0  ranks 2" in lines
    assert "rack1: h[3-4]" in lines
    assert any(line.startswith("by srun: Slurm job ") for line in lines)
    assert any(line.startswith("rank 1=h3 slot=") for line in lines)
