"""Fixture of the tests with a real Slurm."""

import shlex
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.support.slurm_jobs import Launch


@pytest.fixture
def launch(mpirun: str, tmp_path: Path) -> Launch:
    """Return a function from Python code to the line of a batch script that launches it."""

    def line(text: str, *options: str) -> str:
        (tmp_path / "script.py").write_text(text)
        argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), *options, f"{tmp_path}/script.py"]
        return shlex.join(argv)

    return line
