"""Limits of resources, signals to ddlrun, and a missing PATH: each failure is named with its remedy."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.support.launches import run
from tests.support.processes import started

pytestmark = pytest.mark.openmpi(4)

CPU_TIME = "ulimit -S -t 1; while :; do :; done"
FILE_SIZE = "ulimit -f 1; exec head -c 1000000 /dev/zero >$FOLDER/large"
LONG_ARGUMENT = "long=$(head -c 200000 /dev/zero | tr '\\0' x); exec /bin/echo $long"
KILLED = """
import resource
from ddlrun.keeper.processes import explain_kill
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
print(explain_kill(1, oom_kills=0, cpu_seconds=4.9))
"""


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet", "-np", "1")


@pytest.mark.parametrize(
    ("script", "code", "end", "hint"),
    [
        (CPU_TIME, 128 + signal.SIGXCPU, "killed by SIGXCPU", "CPU time limit was reached there: raise it (ulimit -t)"),
        (FILE_SIZE, 128 + signal.SIGXFSZ, "killed by SIGXFSZ", "size limit there: raise it (ulimit -f)"),
        (LONG_ARGUMENT, 126, "exit code 126", "the arguments, or the environment, are too long for that host"),
    ],
    ids=["CPU time", "file size", "long argument"],
)
def test_a_limit_is_named(line: list[str], tmp_path: Path, script: str, code: int, end: str, hint: str) -> None:
    done = run(line, "sh", "-c", script, FOLDER=tmp_path)
    assert (done.returncode, end in done.stderr) == (code, True), done.stderr
    assert hint in done.stderr


def test_the_hard_limit_of_cpu_time_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=True)
    assert done.stdout == "its CPU time reached the limit of 5 s (ulimit -t)\n"


def test_path_may_be_unset(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    done = run(line, "/bin/echo", "done")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGQUIT, signal.SIGALRM, signal.SIGPIPE], ids=lambda number: signal.Signals(number).name
)
def test_signals_that_end_a_job(line: list[str], number: int) -> None:
    argv = ["env", "--default-signal", *line, "sh", "-c", "echo up; exec sleep 3600"]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "up\n"
        os.kill(job.pid, number)
        errors = job.stderr.read()
    assert job.returncode == 128 + number, errors
    assert errors.startswith(f"ddlrun: ended by {signal.Signals(number).name} after "), errors


# An mpirun that waits for the file go before it starts, and records SIGTERM.
SLOW = """#!/bin/sh
case "$*" in *hostfile*) ;; *) exec {mpirun} "$@" ;; esac
trap 'touch {folder}/terminated; exit 1' TERM
echo starts >&2
until [ -e {folder}/go ]; do sleep 0.02; done
{mpirun} "$@"
"""


@pytest.mark.openmpi(5)
def test_an_mpirun_that_would_hang_starts_its_ranks_before_they_are_ended(mpirun: str, tmp_path: Path) -> None:
    slow = tmp_path / "mpirun"
    slow.write_text(SLOW.format(mpirun=mpirun, folder=tmp_path))
    slow.chmod(0o755)
    line = [*launch_line(str(slow), tmp_path, "--quiet", "-np", "1"), "sleep", "3600"]
    with started(line, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr.readline() == "starts\n"
        os.kill(job.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        errors = job.stderr.read()
    assert (job.returncode, (tmp_path / "terminated").exists()) == (130, False), errors
