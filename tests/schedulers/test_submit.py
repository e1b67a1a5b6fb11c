"""ddlrun submit with a real Slurm and a real Grid Engine on the test cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.grid_engine import GridEngineCluster
from tests.cluster.grid_engine import why_not as why_no_grid_engine
from tests.cluster.slurm import SlurmCluster

pytestmark = pytest.mark.extra

SUBMIT = [sys.executable, "-m", "ddlrun", "submit", "--gpus", "0", "--wait"]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits.py"
# Options that launch gets unchanged.
LAUNCH_OPTIONS = ["--allow-run-as-root", "--output", "no-tag", "--quiet", "--env", "MINE=$x  'y'"]
SCRIPT = """import os, sys, time
os.write(1, f"{os.uname().nodename} {os.environ['MINE']} {sys.argv[2:]}\\n".encode())
time.sleep(600) if sys.argv[1] == "stay" else sys.exit(int(sys.argv[1]))
"""


def submit(
    cluster: SlurmCluster | GridEngineCluster, folder: Path, topology: str, *words: str
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    argv = [*SUBMIT, topology, *LAUNCH_OPTIONS, *words]
    return cluster.run("h1", argv, cwd=folder, timeout=300)


def test_slurm_runs_the_ranks_on_its_hosts(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "2x2x2", "--scheduler", "slurm", "train.py", "0", "a  b", "#SBATCH")
    assert done.returncode == 0, done.stdout + done.stderr
    job, *ranks = done.stdout.splitlines()
    assert job.isdigit()
    assert sorted(ranks) == [f"h{host} $x  'y' ['a  b', '#SBATCH']" for host in (1, 2, 3, 4) for _ in range(2)]
    assert f"ddlrun: Slurm job {job}: COMPLETED, exit code 0\n" in done.stderr


def test_exit_code_of_the_ranks_is_that_of_the_slurm_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "1x2", "--scheduler", "slurm", "train.py", "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "FAILED, exit code 3" in done.stderr


def test_exit_code_of_a_cancelled_slurm_job_is_143(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = slurm.argv("h1", [*SUBMIT, "--scheduler", "slurm", "1x2", *LAUNCH_OPTIONS, "train.py", "stay"], cwd=tmp_path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        job = process.stdout.readline().strip()
        assert process.stdout.readline().endswith("[]\n")  # its ranks run
        slurm.run("h1", ["scancel", job], check=True)
        messages = process.stderr.read()
    assert process.returncode == 143, messages
    assert "CANCELLED, exit code 143" in messages


def test_the_example_trains_in_a_slurm_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    argv = [
        *SUBMIT,
        "--scheduler",
        "slurm",
        "1x2x1",
        "--allow-run-as-root",
        "--output",
        "no-tag",
        "--quiet",
        str(EXAMPLE),
    ]
    done = slurm.run("h1", argv, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "done: accuracy 97.2 %" in done.stdout


def test_gpus_of_slurm_are_requested(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    argv = [sys.executable, "-m", "ddlrun", "submit", "--scheduler", "slurm", "--print", "2x2", "train.py"]
    assert "#SBATCH --gres=gpu:2\n" in slurm.run("h1", argv, cwd=tmp_path).stdout


def test_when_free_submits_no_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "1x2", "--scheduler", "slurm", "--when-free", "train.py", "0")
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.skipif(bool(why_no_grid_engine()), reason=why_no_grid_engine())
def test_grid_engine_runs_the_ranks_on_its_hosts(tmp_path: Path) -> None:
    with GridEngineCluster(hosts_per_rack=2, racks=1) as cluster:
        words = ("--scheduler", "sge", "--parallel-environment", "spread", "train.py")
        done = submit(cluster, tmp_path, "2x2", *words, "0", "a  b")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()[1:]) == [f"h{host} $x  'y' ['a  b']" for host in (1, 1, 2, 2)]
        assert submit(cluster, tmp_path, "2x2", *words, "3").returncode == 3
