"""Each benchmark runs once with the smallest sizes and prints its tables. Their times are not judged."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.measure import Failed, NotInstalled, Row, Series, show
from tests.bench.options import CANNOT_RUN

pytestmark = [pytest.mark.extra, pytest.mark.busy]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "bench"
BENCHMARKS = sorted(path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())
NUMBER = r"(?<![\w.])-?\d[\d,]*(\.\d+)?"


def module(benchmark: str) -> str:
    return "tests.bench" if benchmark == "__main__" else f"tests.bench.{benchmark}"


def rows(printed: str) -> list[str]:
    """Return the lines with at least two numbers."""
    return [line for line in printed.splitlines() if len(re.findall(NUMBER, line)) >= 2]


def test_programs_are_started_by_a_benchmark() -> None:
    sources = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    programs = [path.stem for path in (FOLDER / "programs").glob("*.py")]
    assert programs
    assert [program for program in programs if program not in sources] == []


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_benchmark_prints_its_tables(benchmark: str) -> None:
    argv = [sys.executable, "-m", module(benchmark), "--smoke"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == CANNOT_RUN:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(done.stdout), done.stdout
    assert re.findall(r"\bnan\b|Traceback|\bfailed\b", done.stdout) == []


@pytest.mark.parametrize(("error", "failed"), [(Failed("broken"), ["name"]), (NotInstalled("broken"), [])])
def test_only_failed_rows_count_as_failures(
    error: Failed, failed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show("title", [Row("name", Series((), error))]) == failed
    assert "name | broken" in capsys.readouterr().out
