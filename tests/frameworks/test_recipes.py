"""The recipes of docs/how-to/recipes.md: their scripts on two ranks of this machine, and what the page says of them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MPIRUNS, launch_line
from tests.support import needs
from tests.support.processes import started

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "docs" / "examples" / "recipes"
PAGE = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
# Script -> the packages that it imports.
RECIPES = {
    "fsdp.py": ["torch", "sklearn"],
    "accelerate_loop.py": ["torch", "sklearn", "accelerate"],
    "trainer.py": ["torch", "sklearn", "accelerate", "transformers"],
    "lightning_fit.py": ["torch", "sklearn", "lightning"],
}
# A rank, and the line of hang.py in which it is.
STACK = re.compile(r"state of rank (\d).*?<module> \(hang\.py:(\d+)\)", re.DOTALL)
# A rank that waits leaves the core to others.
PATIENT = ["-np", "2", "--output", "no-tag", "--env", "OMPI_MCA_mpi_yield_when_idle=1"]


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Launch two ranks in a folder, with this Python's programs on PATH."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""}  # as the page says, on CPUs
    return subprocess.run(
        [*launch_line(MPIRUNS[5], folder, *PATIENT), *words], cwd=folder, env=environ,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def write_block(folder: Path, name: str) -> Path:
    """Write the block of the page that has the file's name in a comment."""
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)
    (block,) = [block for block in blocks if re.search(rf"^# {re.escape(name)}\b", block, re.MULTILINE)]
    path = folder / name
    path.write_text(block)
    path.chmod(0o755)
    return path


def need_py_spy() -> None:
    """Skip the test if py-spy is not installed beside this Python."""
    if not Path(sys.executable).with_name("py-spy").exists():
        needs.skip("no Python package py-spy", ".venv/bin/pip install py-spy")


@pytest.mark.parametrize("backend", ["gloo", "ddl"])
@pytest.mark.parametrize("script", RECIPES)
def test_a_script_learns_over_two_ranks(script: str, backend: str, tmp_path: Path) -> None:
    for package in RECIPES[script]:
        needs.package(package, "scikit-learn" if package == "sklearn" else package)
    assert f"({os.path.relpath(SCRIPTS / script, ROOT / 'docs' / 'how-to')})" in PAGE
    done = launch(tmp_path, str(SCRIPTS / script), *([] if backend == "gloo" else [backend]))
    assert done.returncode == 0, done.stderr
    (share,) = re.findall(rf"^accuracy ([\d.]+) with 2 ranks over {backend}$", done.stdout, re.MULTILINE)
    assert float(share) > 0.8


def test_modules_are_loaded_on_the_host_of_each_rank(tmp_path: Path) -> None:
    script = write_block(tmp_path, "with-modules")
    module = tmp_path / "module"
    module.write_text("#!/bin/sh\necho module $*\n")
    module.chmod(0o755)
    # A login shell may set PATH, and sites define `module` as a function.
    script.write_text(script.read_text().replace("bash -l", "bash"))
    done = launch(tmp_path, "./with-modules", "sh", "-c", "echo run")
    assert sorted(done.stdout.splitlines()) == ["module load cuda/12.4"] * 2 + ["run"] * 2, done.stderr


def test_the_stacks_of_a_hang_show_the_rank_that_is_elsewhere(tmp_path: Path) -> None:
    need_py_spy()
    lines = write_block(tmp_path, "hang.py").read_text().splitlines()
    sleeping, waiting = (lines.index(line) + 1 for line in lines if re.match(r"\s*(time\.sleep|world\.barrier)", line))
    expected = {"0": str(waiting), "1": str(sleeping)}
    assert dict(STACK.findall(PAGE)) == expected
    argv = [*launch_line(MPIRUNS[5], tmp_path, *PATIENT), "--stall-timeout", "5", "--stall-action", "report", "hang.py"]
    with started(
        ["env", "--default-signal=INT", *argv],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        printed = ""
        while dict(STACK.findall(printed)) != expected:
            line = job.stderr.readline()
            assert line, printed
            printed += line
        job.send_signal(signal.SIGINT)
        job.stderr.read()
    assert job.returncode == 130


def test_each_rank_has_a_profile(tmp_path: Path) -> None:
    need_py_spy()
    (wrap,) = re.findall(r"--wrap '(all:py-spy .*?)'", PAGE)
    done = launch(tmp_path, "--wrap", wrap, "python", "-c", "import time; time.sleep(1)")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("run/rank*.json")) == ["rank0.json", "rank1.json"]


def test_a_batch_job_logs_rank_0_and_keeps_the_output_of_all(tmp_path: Path) -> None:
    write_block(tmp_path, "job.sh")
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK']); raise SystemExit(7)\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["./job.sh"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    assert done.stdout.endswith(f"exit code 7; the output of all ranks is in {folder}\n")
    assert re.search(r"^\S+ .*rank 0$", done.stdout, re.MULTILINE)
    assert (folder / "rank.0" / "stdout").read_text() == "rank 0\n"
