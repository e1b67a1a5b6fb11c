"""Scripts of the pages about Slurm and Grid Engine, run by real ones (test_schedulers.py: all others)."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.grid_engine import GridEngineCluster
from tests.cluster.slurm import SlurmCluster
from tests.conftest import OWN
from tests.docs.pages import blocks, script
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extra

# What differs between the pages' cluster and ours: a day is more than a test has, and hosts have two cores.
SLURM = {"--time=24:00:00": "--time=10"}
GRID_ENGINE = {"-pe mpi 8": "-pe spread 4", "-pe mpi 4": "-pe spread 4"}

TELL = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, os.uname().nodename, world.allreduce(1), *sys.argv[1:], flush=True)
"""
FIRST_STEPS = "pytorch-on-slurm"
FIRST = {
    "~/train/bin/ddlrun": f"{Path(sys.executable).parent}/ddlrun",
    "--gpus-per-node=4": "--ntasks-per-node=2",  # GPUs: tests/hosts/test_gpus.py
    "--time=04:00:00": "--time=10",
}
# At the first start, all ranks wait for the warning; then h2 loses what starts its ranks, as if it had failed.
LOSES_H2 = """
import os, signal
from pathlib import Path
from torch import distributed as dist
signals = [signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
dist.init_process_group("gloo")
if os.environ["DDLRUN_RESTART"] == "0":
    print("begins", flush=True)
    signal.sigwait(signals)
    print("saves", flush=True)
    dist.barrier()
    if os.uname().nodename == "h2":
        pid = os.getppid()
        for _ in range(2):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
    signal.pause()
print("rank", dist.get_rank(), os.uname().nodename, dist.get_world_size(), flush=True)
dist.barrier()  # gloo fails in a rank that still connects when another ends
dist.destroy_process_group()
"""
WARNED = script("inside-a-job", "A warning before the time limit", kind="python")
# Grid Engine's warning is another signal; whoever had it is still there two seconds later.
WARNED_BY_USR2 = WARNED.replace("USR1", "USR2").replace(
    "warned.clear()", "restart = time.sleep(2)"
)  # fmt: skip
AGAIN = """
import os, sys
print("restart", os.environ["DDLRUN_RESTART"], *sys.argv[1:], flush=True)
sys.exit(99 if os.environ["DDLRUN_RESTART"] == "0" else 0)
"""


def submit(
    cluster: SlurmCluster | GridEngineCluster, folder: Path, text: str, train: str, replaced: Mapping[str, str]
) -> str:
    """Submit a page's script as a user does, with `train` as train.py; return the job's id."""
    for page, ours in replaced.items():
        text = text.replace(page, ours)
    (folder / "train.py").write_text(train)
    (folder / "job.sh").write_text(text)
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["sbatch", "--parsable"] if isinstance(cluster, SlurmCluster) else ["qsub", "-terse", "-o", "out"]
    return cluster.run("h1", ["env", path, *command, "job.sh"], cwd=folder, check=True).stdout.strip()


def until(path: Path, words: str, count: int) -> None:
    """Wait until words stand so often in a file."""
    wait_until(lambda: path.exists() and path.read_text().count(words) >= count, path.read_text)


def ranks(text: str) -> list[str]:
    """Return what ranks told, without their tags."""
    return sorted(line.rpartition("] ")[2] for line in text.splitlines() if "] rank " in line)


EIGHT = [f"rank {rank} h{rank // 2 + 1} 8" for rank in range(8)]


@pytest.mark.openmpi(5)
def test_slurms_smallest_job(slurm: SlurmCluster, mpirun: str, tmp_path: Path) -> None:
    major = {"ddlrun launch": f"ddlrun launch --mpirun {mpirun}"}
    job = submit(slurm, tmp_path, script("slurm", "The smallest job"), TELL, major)
    slurm.wait_for(job, "COMPLETED")
    assert ranks((tmp_path / f"slurm-{job}.out").read_text()) == EIGHT


def test_salloc(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TELL)
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    line = script("slurm", "The smallest job", 1)
    assert line.startswith("salloc ")
    done = slurm.run("h1", ["env", path, "sh", "-c", line], cwd=tmp_path)
    assert (done.returncode, ranks(done.stdout)) == (0, EIGHT), done.stderr


def test_slurm_prints_what_the_page_shows(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, script("slurm", "Show what ddlrun found"), "", {})
    slurm.wait_for(job, "COMPLETED")
    printed = re.sub(r"Slurm job \d+", "Slurm job 7", (tmp_path / f"slurm-{job}.out").read_text())
    assert printed == script("slurm", "Show what ddlrun found", kind="text")


@pytest.mark.parametrize(
    ("title", "words", "told"),
    [
        ("Racks that are not equal", "left out, as --topology 2x1x2 needs 2 hosts: h2",
         ["rank 0 h1 4", "rank 1 h1 4", "rank 2 h3 4", "rank 3 h3 4"]),
        ("Heterogeneous jobs", "a heterogeneous job: daemons are started by ssh",
         [f"rank {rank} h{rank // 2 + 1} 6" for rank in range(6)]),
        ("Use ssh instead of srun", "", EIGHT),
        ("Start the ranks with srun, without mpirun", "", EIGHT),
    ],
)  # fmt: skip
def test_other_jobs_of_slurm(slurm: SlurmCluster, tmp_path: Path, title: str, words: str, told: list[str]) -> None:
    job = submit(slurm, tmp_path, script("slurm", title), TELL, {})
    slurm.wait_for(job, "COMPLETED")
    printed = (tmp_path / f"slurm-{job}.out").read_text()
    assert words in printed
    assert ranks(printed) == told


def test_an_array_of_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, script("slurm", "Arrays"), TELL, {})
    for task in (0, 1):
        slurm.wait_for(f"{job}_{task}", "COMPLETED")
        told = ranks((tmp_path / f"slurm-{job}_{task}.out").read_text())
        assert [line.split()[3:] for line in told] == [["4", str(task)]] * 4


def test_pytorch_on_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    train = script(FIRST_STEPS, "2. Write the job script", kind="python")
    job = submit(slurm, tmp_path, script(FIRST_STEPS, "2. Write the job script"), train, FIRST)
    slurm.wait_for(job, "COMPLETED")
    assert ranks((tmp_path / f"slurm-{job}.out").read_text()) == [f"rank {rank} of 4 on cpu" for rank in range(4)]
    check = script(FIRST_STEPS, "3. Try it")
    for page, here in FIRST.items():
        check = check.replace(page, here)
    done = slurm.run("h1", ["sh", "-c", check], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("manager", ["auto", OWN])
def test_pytorch_on_slurm_survives(slurm: SlurmCluster, tmp_path: Path, manager: str) -> None:
    ours = {**SLURM, **FIRST, "ddlrun launch": f"ddlrun launch --process-manager {manager}", "4x2x1": "2x2x1"}
    job = submit(slurm, tmp_path, script(FIRST_STEPS, "5. Survive failures and time limits"), LOSES_H2, ours)
    log = tmp_path / f"slurm-{job}.out"
    until(log, "begins", 4)
    slurm.run("h1", ["scancel", "--batch", "--signal=USR1", job], check=True)
    slurm.wait_for(job, "COMPLETED", timeout=300)
    assert (log.read_text().count("saves"), ranks(log.read_text())) == (4, [
        "rank 0 h1 4", "rank 1 h1 4", "rank 2 h3 4", "rank 3 h3 4",
    ])  # fmt: skip


@pytest.mark.parametrize("to", [["--batch"], []], ids=["script", "steps"])
def test_slurm_warns_and_starts_again(slurm: SlurmCluster, tmp_path: Path, to: list[str]) -> None:
    job = submit(slurm, tmp_path, script("slurm", "Warning and restart"), WARNED, SLURM)
    log = tmp_path / f"slurm-{job}.out"
    until(log, "begins", 8)
    slurm.run("h1", ["scancel", *to, "--signal=USR1", job], check=True)
    until(log, "saves", 8)
    slurm.requeue(job)
    slurm.wait_for(job, "COMPLETED", timeout=300)
    assert log.read_text().count("goes on, restart 1") == 8
    assert log.read_text().count("saves") == 8


@pytest.mark.openmpi(5)
def test_grid_engines_smallest_job(sge: GridEngineCluster, mpirun: str, tmp_path: Path) -> None:
    major = {**GRID_ENGINE, "ddlrun launch": f"ddlrun launch --mpirun {mpirun}"}
    sge.wait_for(submit(sge, tmp_path, script("grid-engine", "The smallest job"), TELL, major))
    told = [line.split() for line in ranks((tmp_path / "out").read_text())]
    assert [(line[1], line[3]) for line in told] == [(str(rank), "4") for rank in range(4)]
    assert sorted(line[2] for line in told) == ["h1", "h1", "h2", "h2"]


def test_grid_engine_prints_what_the_page_shows(sge: GridEngineCluster, tmp_path: Path) -> None:
    sge.wait_for(submit(sge, tmp_path, script("grid-engine", "Show what ddlrun found"), "", GRID_ENGINE))
    printed = (tmp_path / "out").read_text()
    printed = re.sub(r"\(/\S*/execd/h\d/active_jobs/\d+", "(/var/spool/gridengine/execd/h1/active_jobs/7", printed)
    printed = re.sub(r"Grid Engine job \d+", "Grid Engine job 7", printed)
    if printed.startswith("h2"):  # Grid Engine takes either for the first
        printed = re.sub(r"(?m)^(h|rack \d: h)([12])", lambda match: f"{match[1]}{3 - int(match[2])}", printed)
    assert printed == script("grid-engine", "Show what ddlrun found", kind="text")


@pytest.mark.openmpi(5)
def test_grid_engine_warns(sge: GridEngineCluster, mpirun: str, tmp_path: Path) -> None:
    major = {**GRID_ENGINE, "ddlrun launch": f"ddlrun launch --mpirun {mpirun}"}
    job = submit(sge, tmp_path, script("grid-engine", "Warning before the time limit"), WARNED_BY_USR2, major)
    until(tmp_path / "out", "begins", 4)
    sge.run("h1", ["qdel", job], check=True)
    sge.wait_for(job)
    printed = (tmp_path / "out").read_text()
    assert printed.count("saves") == 4, printed
    assert "failed" not in printed


def test_grid_engine_starts_tasks_again(sge: GridEngineCluster, tmp_path: Path) -> None:
    job = submit(sge, tmp_path, script("grid-engine", "Restart, arrays"), AGAIN, GRID_ENGINE)
    for task in "12":  # between two starts qstat may not know the job
        until(tmp_path / "out", f"restart 1 {task}", 1)
    sge.wait_for(job.partition(".")[0], timeout=300)
    printed = (tmp_path / "out").read_text()
    assert {(one, task) for one in "01" for task in "12" if f"restart {one} {task}" in printed} == {
        ("0", "1"), ("0", "2"), ("1", "1"), ("1", "2"),
    }, printed  # fmt: skip


def test_every_script_is_run_here_or_with_stand_ins() -> None:
    tests = "".join((Path(__file__).parent / name).read_text() for name in (
        "test_hosts.py", "test_schedulers.py"))  # fmt: skip
    pages = ("inside-a-job", "pytorch-on-slurm", "slurm", "grid-engine", "lsf", "pbs", "flux", "kubernetes")
    found = [(page, block.title) for page in pages for block in blocks(page) if block.kind != "text"]
    # Not run: "1. Install", which downloads, and "4. Submit", as `submit` does the same.
    assert [one for one in found if f'"{one[1]}"' not in tests and one[0] != "kubernetes"] == []
