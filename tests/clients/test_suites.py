"""Test suites of other projects under ddlrun."""

from pathlib import Path

import pytest

from tests.clients.c10d import summary
from tests.clients.run import PYTHON, folder_of, places_of, run
from tests.clients.suites import COLUMNS, PYTEST, SUITES, UNITTEST, Result, Suite
from tests.clients.table import BEGIN, END, NOT_RUN, parse_rows, replace_rows
from tests.support import needs


@pytest.mark.parametrize(
    ("pattern", "output", "code", "result"),
    [
        (PYTEST, "...\n15 passed in 7.47s\n", 0, "15 passed"),
        (PYTEST, "10 failed, 5 passed in 7.47s\n", 1, "10 failed, 5 passed"),
        (PYTEST, "5 passed, 1 error in 7.47s\n", 1, "exit code 1"),
        (PYTEST, "no tests ran in 0.01s\n", 0, "exit code 0"),
        (UNITTEST, "Ran 19 tests in 30.1s\n\nOK\n", 0, "19 passed"),
        (UNITTEST, "[0@h1] Ran 9 tests in 3s\n[1@h1] Ran 9 tests in 3s\n\n\n[0@h1] OK (skipped=2)\n", 0, "7 passed"),
        (PYTEST, "[1,0]<stdout>:15 passed, 2 skipped in 7.47s\n[1@h1] 15 passed in 7s\n", 0, "15 passed"),
        (UNITTEST, "Ran 19 tests in 30.1s\n\nFAILED (errors=1)\n", 1, "exit code 1"),
        (PYTEST, "ERROR a.py\n1 error in 4.47s\n", 2, "exit code 2"),
        (UNITTEST, "ERROR: a (unittest.loader._FailedTest.a)\nFAILED (errors=1)\n", 1, "exit code 1"),
        (UNITTEST, "[0@h1] ERROR: testIO (test_io.TestIO.testIO)\nRan 9 tests in 3s\n\nOK\n", 1, "1 failed"),
        ("", "", 0, "passed"),
    ],
)
def test_results_of_suites(pattern: str, output: str, code: int, result: str) -> None:
    assert Suite("x", "1", "x", pattern).result(output, code).text == result


@pytest.mark.parametrize(
    ("text", "ours", "plain", "result"),
    [
        ("1 failed, 2 passed", {"x"}, {"x"}, "1 failed, 2 passed, as with mpirun"),
        ("1 failed, 2 passed", {"x"}, {"x", "y"}, "1 failed, 2 passed, as with mpirun"),
        ("1 failed, 2 passed", {"x"}, {"y"}, "1 failed, 2 passed"),
        ("1 failed, 2 passed", {"x"}, set(), "1 failed, 2 passed"),
        ("exit code 1", set(), set(), "exit code 1"),
    ],
)
def test_only_failures_that_mpirun_shows_too_are_excused(
    text: str, ours: set[str], plain: set[str], result: str
) -> None:
    beside = Result(text, frozenset(ours)).beside(Result("1 failed", frozenset(plain)))
    assert beside.text == result
    assert beside.failed == (result == text)


def test_failures_are_named_as_pytest_and_unittest_print_them() -> None:
    output = (
        "FAILED a.py::test_x[1-2] - assert 0\nERROR b.py::test_y\n"
        "[1,0]<stderr>:FAIL: testA (t.A.testA)\nFAILED (errors=1)\n"
    )
    result = Suite("x", "1", "x").result(output, 1)
    assert result == Result("3 failed", frozenset({"a.py::test_x[1-2]", "b.py::test_y", "testA (t.A.testA)"}))


LOST = (
    "AssertionError: expecting MPI_Abort() message in stdout/stderr:\n[stderr]:\n[vm:16985] [[11943,0],0] "
    "ORTE_ERROR_LOG: Data unpack would read past end of buffer in file util/show_help.c at line 501\n"
)


@pytest.mark.parametrize("reason", [LOST, "AssertionError: 0 not found in (7, 1)\n", LOST.replace("MPI_Abort", "1 ==")])
def test_a_failure_is_excused_where_mpirun_has_lost_the_text_of_an_abort(reason: str) -> None:
    rule = "=" * 70
    output = f"..F.F.\n{rule}\nFAIL: testA (t.A.testA)\n{LOST}\n{rule}\nFAIL: testB (t.B.testB)\n{reason}\n"
    result = Suite("x", "1", "x", UNITTEST).result(f"{output}Ran 6 tests in 1s\n\nFAILED (failures=2)\n", 1)
    assert (result.failed, result.text) == (True, "2 failed")
    assert result.beside(Result("6 passed")).failed == ("expecting MPI_Abort()" not in reason)


# Quick suites that take about 20 s together on two quiet cores; `make test-clients` runs all quick ones.
TESTED = ("mpi-pytest", "accelerate, test_script")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tested.md"


def test_the_page_has_the_table_that_is_generated() -> None:
    page = PAGE.read_text()
    assert replace_rows(page, {}) == page


def test_a_row_keeps_old_results_of_its_version() -> None:
    new, other = ["4.1.2", NOT_RUN, "20 passed", *["-"] * 3], ["4.2", NOT_RUN, "20 passed", *["-"] * 3]
    name, page = "mpi4py, demo/test-run", f"text\n{BEGIN}{END}more\n"
    page = replace_rows(page, {name: ["4.1.2", *["19 passed"] * 5], "hpcc": ["1.5.0", *["passed"] * 5]})
    assert f"| {name} | 4.1.2 | 19 passed | 20 passed | - | - | - |\n| hpcc |" in replace_rows(page, {name: new})
    assert f"| {name} | 4.2 | not run | 20 passed | - | - | - |\n| hpcc |" in replace_rows(page, {name: other})
    assert page.startswith("text\n")
    assert page.endswith("more\n")


@pytest.mark.parametrize("name", SUITES)
def test_the_commands_of_suites_have_the_places_of_a_run(name: str) -> None:
    suite = SUITES[name]
    for hosts in (False, True):
        places = places_of(hosts=hosts, folder=Path("results"))
        assert "{" not in suite.command.format(**places)
        assert "{" not in suite.own.format(**places)


def test_cases_that_pass_with_gloo_alone_are_listed() -> None:
    gloo = {"A.x": "passed", "A.y": "passed", "A.z": "skipped", "A.test_ddp_logging_data_cpu": "passed"}
    ddl = {"A.x": "failed", "A.z": "skipped", "A.test_ddp_logging_data_cpu": "failed"}
    text, worse = summary(gloo, ddl)
    assert text == "gloo: 3 passed, 0 failed, 1 skipped\nddl: 0 passed, 2 failed, 1 skipped"
    assert worse == ["A.x", "A.y"]


@pytest.mark.extra
@pytest.mark.busy
@pytest.mark.parametrize("name", TESTED)
def test_quick_suites_have_the_results_of_the_page(name: str, tmp_path: Path) -> None:
    suite, title = SUITES[name], "5.0, one host"
    if not PYTHON.exists() or not folder_of(suite).exists():
        needs.skip("no test suites of other projects", "make test-clients")
    version, *results = parse_rows(PAGE.read_text())[name]
    assert version == suite.version
    result = run(suite, COLUMNS[title], tmp_path)
    assert result.text == dict(zip(COLUMNS, results, strict=True))[title], (tmp_path / "output").read_text()
