"""Scripts for IBM's DDL, as docs/how-to/from-powerai-ddl.md shows them, with the one change that the page names."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import launch_line

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "from-powerai-ddl.md"
SCRIPTS = re.findall(r"```python\n(import ddl\n(?:.*\n)*?)```", PAGE.read_text())
KERAS = all(importlib.util.find_spec(name) for name in ("keras", "torch"))
NO_KERAS = pytest.mark.skipif(not KERAS, reason="no keras, or no torch for it")


@pytest.mark.parametrize(
    ("major", "script"),
    [(4, SCRIPTS[0]), pytest.param(5, SCRIPTS[1], marks=NO_KERAS)],
    ids=["numpy", "keras"],
    indirect=["major"],
)
def test_a_script_for_ibms_ddl_needs_its_import_changed(mpirun: str, tmp_path: Path, script: str) -> None:
    ((old, new),) = re.findall(r"```diff\n-(.*)\n\+(.*)\n```", PAGE.read_text())
    (tmp_path / "train.py").write_text(script.replace(old, new, 1))
    argv = launch_line(mpirun, tmp_path, "--no-tag-output", "--accelerators", "core", "--mode", "r")
    environ = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [*argv, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"accuracy (.*) % with (\d+) learners", done.stdout.strip())
    assert found, done.stdout + done.stderr
    assert float(found[1]) >= 90
    assert int(found[2]) == len(os.sched_getaffinity(0)) >= 2


def test_the_page_shows_both() -> None:
    assert len(SCRIPTS) == 2
