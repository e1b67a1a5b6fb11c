"""Signals that reach ddlrun after the end of a job, before its outcome is reported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddlrun.supervise.signals import Signals
from tests.conftest import OWN, launch_line
from tests.support.launches import run
from tests.support.processes import started

# The command of an event of a run, which ends ddlrun at the end of the run.
HOOK = "import os, signal, sys; '\"end\"' in sys.stdin.read() and os.kill(os.getppid(), signal.SIGTERM)"
# A grep that sends the signal to ddlrun where that searches for processes of the run, and blocks.
GREP = """#!/bin/sh
case $* in *DDLRUN_RUN=*) kill -TERM "$(cat {folder}/ddlrun)"; exec sleep 300 ;; esac
PATH={path} exec grep "$@"
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_late_signal_changes_no_outcome_and_prevents_a_restart(tmp_path: Path, code: int) -> None:
    options = ("--quiet", "--restarts", "1", "--on-event", f'{sys.executable} -c "{HOOK}"')
    done = run(launch_line(OWN, tmp_path, *options), "-np", "1", "sh", "-c", f"exit {code}")
    assert (done.returncode, (tmp_path / "run" / "outcome.json").exists()) == (code, True), done.stderr
    assert [line.partition(";")[0] for line in done.stderr.splitlines()[-2:]] == (
        [f"ddlrun: exit code {code}", "ddlrun: no restart: received SIGTERM"] if code else []
    )


def test_a_signal_ends_the_search_for_processes(tmp_path: Path) -> None:
    grep = tmp_path / "bin" / "grep"
    grep.parent.mkdir()
    grep.write_text(GREP.format(folder=tmp_path, path=os.environ["PATH"]))
    grep.chmod(0o755)
    line = ["env", f"PATH={grep.parent}:{os.environ['PATH']}", *launch_line(OWN, tmp_path, "--restarts", "1")]
    line += ["-np", "1", "sh", "-c", "echo $$; exec sleep 300"]
    with started(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        (tmp_path / "ddlrun").write_text(str(job.pid))
        guard_and_keeper = psutil.Process(int(job.stdout.readline().split()[-1])).parents()[:2]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in guard_and_keeper:
                process.send_signal(number)
        errors = job.stderr.read()
    assert (job.returncode, (tmp_path / "run" / "outcome.json").exists()) == (137, True), errors
    assert "left on localhost, which could not be searched (localhost: the search was interrupted)" in errors
    assert errors.endswith("ddlrun: no restart: received SIGTERM\n")


def test_the_second_request_to_end_the_job_is_urgent() -> None:
    states = []
    with Signals() as signals:
        signals.queue()
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            states.append((signals.request, signals.urgent))
    assert states == [(None, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
