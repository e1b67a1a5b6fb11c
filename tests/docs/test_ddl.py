"""Scripts of the how-to pages: those for IBM's DDL with the one change that the page names, and one for all rules."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.docs.pages import script
from tests.support import needs

pytestmark = pytest.mark.busy
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "from-powerai-ddl.md"
SCRIPTS = re.findall(r"```python\n(from ddlrun import ddl\nimport (?:.*\n)*?)```", PAGE.read_text())


@pytest.mark.parametrize(
    ("major", "shown"),
    [(4, SCRIPTS[0]), pytest.param(5, SCRIPTS[1], marks=pytest.mark.extra)],
    ids=["numpy", "keras"],
    indirect=["major"],
)
def test_a_script_for_ibms_ddl_needs_its_import_changed(mpirun: str, tmp_path: Path, shown: str) -> None:
    if "keras" in shown:
        needs.package("torch", "torch==2.13.0")
        needs.package("keras")
    ((_, new),) = re.findall(r"```diff\n-(.*)\n\+(.*)\n```", PAGE.read_text())
    assert shown.startswith(f"{new}\n")
    assert shown.count("import ddl\n") == 1
    (tmp_path / "train.py").write_text(shown)
    argv = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "2", "--mode", "r")
    environ = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [*argv, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"accuracy (.*) % with (\d+) learners", done.stdout.strip())
    assert found, done.stdout + done.stderr
    assert float(found[1]) >= 90
    assert int(found[2]) == 2


def test_the_page_shows_both() -> None:
    assert len(SCRIPTS) == 2


@pytest.mark.extra
@pytest.mark.parametrize("major", [4], indirect=True)
def test_a_script_goes_on_with_more_ranks_than_it_began_with(mpirun: str, tmp_path: Path) -> None:
    needs.package("torch", "torch==2.13.0")
    (tmp_path / "train.py").write_text(script("data-and-learning-rate", "PyTorch", kind="python"))
    launch = launch_line(mpirun, tmp_path, "--output", "no-tag", "-np", "2")
    said = ""
    for argv in ([sys.executable, "train.py", "1"], [*launch, "train.py", "8"]):
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        said += done.stdout
    ranks = 2
    rates = [float(rate) for rate in re.findall(r"epoch \d: .* lr (.*)", said)]
    assert [int(epoch) for epoch in re.findall(r"epoch (\d):", said)] == list(range(8))
    assert (rates[0], rates[-1]) == (0.02, 0.02 * ranks)
    assert rates == sorted(rates)
    right = re.findall(r"accuracy (.*) % with (\d+) learner", said)
    assert [int(learners) for _, learners in right] == [1, ranks]
    assert float(right[-1][0]) >= 90
