"""Run the fault tests, and write what they saw into fault_results.json: python -m tests.hosts.faults.

Arguments are pytest's: with `-k how` the other rows stay as they are. A test that passes changes its row at once, so a
run that is cut short loses nothing.
"""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.hosts import fault_page
from tests.hosts.fault_results import FILE, ROWS, Result, read_results, write_results
from tests.hosts.fault_table import FAULTS

TESTS = ("tests/hosts/test_faults.py", "tests/hosts/test_fault_table.py")


def update_result(fault: str, manager: str, result: Result) -> None:
    """Write a result into the file, which another run may be changing, too; rows have the order of the tests."""
    with FILE.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        results = read_results()
        row = results.setdefault(fault, {})
        if manager not in row or row[manager].code is not None:
            row[manager] = result
        order = [*ROWS.values(), *map(str, FAULTS)]
        write_results({name: results[name] for name in order if name in results})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what a test has seen once it has passed: this module is a plugin of the pytest that `main` runs."""
    noted = Path(os.environ["FAULT_RESULTS"])
    if report.when == "call" and report.passed and noted.read_text():
        fault, manager, *result = json.loads(noted.read_text().splitlines()[-1])
        update_result(fault, manager, Result(*result))
    if report.when == "teardown":
        noted.write_text("")


def main() -> int:
    """Run the tests with every process manager, and write the page."""
    with tempfile.NamedTemporaryFile() as noted:
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.hosts.faults", *TESTS, *sys.argv[1:]]
        variables = {"FAULT_RESULTS": noted.name, "EVERY_MPI": "1"}
        code = subprocess.run(argv, env={**os.environ, **variables}, check=False).returncode
    fault_page.PAGE.write_text(fault_page.render_page())
    return code


if __name__ == "__main__":
    sys.exit(main())
