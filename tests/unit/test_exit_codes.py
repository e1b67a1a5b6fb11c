"""Exit codes of ddlrun itself, and those of the script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.errors import shift_own_code
from ddlrun.plan.outcome import Outcome, RankEnd
from docs.reference.tables import read_table

LAUNCH = [sys.executable, "-m", "ddlrun", "launch"]


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [*LAUNCH, *words]
    return subprocess.run(
        argv, env={**os.environ, **environ}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def end(code: int, max_rss_kib: int = 1) -> RankEnd:
    return RankEnd(
        rank=0, host="h", local_rank=0, exit_code=code, signal=None, seconds=1.0, max_rss_kib=max_rss_kib,
        ordered=False, reason="", tail="",
    )  # fmt: skip


def test_the_codes_are_those_of_the_page() -> None:
    rows = [
        (number, int(base))
        for own, shifted in read_table("reference/exit-codes.md", "Exit codes of ddlrun itself")
        for number, base in zip(own.partition(":")[0].split(", "), shifted.split(", "), strict=True)
    ]
    examples = {"128 + N": 130, "any other": 213}
    assert [shift_own_code(examples.get(number) or int(number), 200) for number, _ in rows] == [
        base for _, base in rows
    ]


@pytest.mark.parametrize(
    ("outcome", "code", "whose"),
    [
        (Outcome(exit_code=0, signal=None, seconds=1.0), 0, "program"),
        (Outcome(exit_code=3, signal=None, seconds=1.0, root=end(3)), 3, "program"),
        (Outcome(exit_code=3, signal=None, seconds=1.0, reason="host h is lost"), 203, "ddlrun"),
        (Outcome(exit_code=143, signal=15, seconds=1.0), 207, "ddlrun"),
        (Outcome(exit_code=5, signal=None, seconds=0.0, root=end(5, max_rss_kib=0)), 205, "ddlrun"),
    ],
)  # fmt: skip
def test_only_codes_of_ddlrun_are_shifted(outcome: Outcome, code: int, whose: str) -> None:
    shifted = outcome._replace(exit_code_base=200)
    assert (shifted.final_code, shifted.as_dict()["exit_code_of"]) == (code, whose)
    assert outcome.final_code == outcome.exit_code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--exit-code-base", "200", "--topology", "x", "true"], 202),
        (["--exit-code-base=200", "--no-such-option", "true"], 202),
        (["--no-such-option", "--exit-code-base=200", "true"], 2),
        (["--exit-code-base", "248", "true"], 2),
        (["true", "--exit-code-base", "200", "--topology", "x"], 104),
    ],
)
def test_errors_before_the_start(words: list[str], code: int) -> None:
    environ = {"DDLRUN_EXIT_CODE_BASE": "100", "DDLRUN_CORES_PER_RANK": "9999"} if code == 104 else {}
    assert run(*words, **environ).returncode == code


@pytest.mark.openmpi(5)
def test_the_script_and_ddlrun_end_with_different_codes(mpirun: str, tmp_path: Path) -> None:
    words = ["--exit-code-base", "200", "--mpirun", mpirun, "-np", "1", "--run-dir"]
    script = run(*words, str(tmp_path / "script"), "sh", "-c", "exit 5")
    assert script.returncode == 5
    assert json.loads((tmp_path / "script/outcome.json").read_text())["exit_code_of"] == "program"
    limit = run(*words, str(tmp_path / "limit"), "--timeout", "1", "sleep", "3600")
    assert limit.returncode == 206
    assert "ddlrun: exit code 206; " in limit.stderr
    assert "ddlrun: note: at the time limit, rank 0 sleeps; stacks: " in limit.stderr
    assert json.loads((tmp_path / "limit/outcome.json").read_text())["exit_code_of"] == "ddlrun"
