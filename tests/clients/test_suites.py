"""Test suites of other projects under ddlrun."""

from pathlib import Path

import pytest

from tests.clients.run import folder_of, run
from tests.clients.suites import PYTEST, SUITES, UNITTEST, Suite
from tests.support import needs


@pytest.mark.parametrize(
    ("pattern", "output", "code", "result"),
    [
        (PYTEST, "...\n15 passed in 7.47s\n", 0, "15 passed"),
        (PYTEST, "10 failed, 5 passed in 7.47s\n", 1, "exit code 1"),
        (PYTEST, "no tests ran in 0.01s\n", 0, "exit code 0"),
        (UNITTEST, "Ran 19 tests in 30.1s\n\nOK\n", 0, "19 passed"),
        (UNITTEST, "Ran 19 tests in 30.1s\n\nFAILED (errors=1)\n", 1, "exit code 1"),
        ("", "", 0, "passed"),
    ],
)
def test_results_of_suites(pattern: str, output: str, code: int, result: str) -> None:
    assert Suite("x", "1", "x", pattern).result(output, code) == result


@pytest.mark.extra
@pytest.mark.busy
@pytest.mark.openmpi(5)
def test_mpi4pys_test_of_its_run_module(major: int, tmp_path: Path) -> None:
    suite = SUITES["mpi4py, demo/test-run"]
    if not folder_of(suite).exists():
        needs.skip("no test suites of other projects", "make test-clients")
    assert run(suite, major, tmp_path) == "19 passed", (tmp_path / "output").read_text()
