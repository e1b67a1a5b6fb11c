"""Whose exit code it is: that of ddlrun itself, or of the script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.plan.outcome import Outcome, RankEnd

LAUNCH = [sys.executable, "-m", "ddlrun", "launch"]


def end(code: int, max_rss_kib: int = 1) -> RankEnd:
    return RankEnd(
        rank=0, host="h", local_rank=0, exit_code=code, signal=None, seconds=1.0, max_rss_kib=max_rss_kib,
        ordered=False, reason="", tail="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "whose"),
    [
        (Outcome(exit_code=0, signal=None, seconds=1.0), "program"),
        (Outcome(exit_code=3, signal=None, seconds=1.0, root=end(3)), "program"),
        (Outcome(exit_code=3, signal=None, seconds=1.0, reason="host h is lost"), "ddlrun"),
        (Outcome(exit_code=143, signal=15, seconds=1.0), "ddlrun"),
        (Outcome(exit_code=5, signal=None, seconds=0.0, root=end(5, max_rss_kib=0)), "ddlrun"),
    ],
)
def test_a_code_is_that_of_the_program_or_of_ddlrun(outcome: Outcome, whose: str) -> None:
    assert outcome.as_dict()["exit_code_of"] == whose


@pytest.mark.openmpi(5)
@pytest.mark.parametrize(
    ("words", "code", "whose", "cause"),
    [
        (["sh", "-c", "exit 5"], 5, "program", "rank_failed"),
        (["--timeout", "1", "sleep", "3600"], 124, "ddlrun", "time_limit"),
        (["true"], 0, "program", "success"),
    ],
)
def test_the_outcome_names_it_and_the_cause(
    words: list[str], code: int, whose: str, cause: str, mpirun: str, tmp_path: Path
) -> None:
    options = ["--mpirun", mpirun, "-np", "1", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([*LAUNCH, *options, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    outcome = json.loads((tmp_path / "run/outcome.json").read_text())
    assert (outcome["exit_code_of"], outcome["cause"]) == (whose, cause)
