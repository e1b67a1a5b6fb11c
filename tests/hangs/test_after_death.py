"""A job that hangs is ended by Ctrl-C, or as a rank dies: the doctor still has the verdict on it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import OWN, launch_line
from tests.hangs.test_groups import GUILTY, LINES, RANKS, SCRIPT, expected
from tests.support import needs
from tests.support.launches import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extra
# More than the time without output from which on a job is examined at its end.
SILENT_SECONDS = 4.0


@contextmanager
def hanging(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Provide a job that has printed nothing for a while; wait for its end after the body."""
    needs.package("torch")
    output = folder / "output"
    with output.open("w") as file, (folder / "errors").open("w") as errors:
        argv = launch_line(OWN, folder, "-np", str(RANKS), "--grace", "300", str(SCRIPT), str(GUILTY))
        with subprocess.Popen(argv, stdout=file, stderr=errors) as job:
            wait_until(lambda: output.read_text().count("block 1\n") == RANKS)
            wait_until(lambda: time.time() > output.stat().st_mtime + SILENT_SECONDS)
            yield job


def examine(folder: Path) -> dict[str, Any]:
    """Return the examination of a run that has ended."""
    done = run([sys.executable, "-m", "ddlrun", "doctor", "--json", str(folder / "run")])
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_a_job_that_was_ended_by_hand(tmp_path: Path) -> None:
    with hanging(tmp_path) as job:
        job.send_signal(signal.SIGINT)
    note = f"ddlrun: note: when the job ended: {expected('')}; ddlrun doctor prints the stacks\n"
    assert note in (tmp_path / "errors").read_text()
    record = examine(tmp_path)
    assert record["sentence"] == f"when the job ended: {expected('')}"
    assert record["verdict"]["guilty"] == [GUILTY]
    assert f"      main (mesh.py:{LINES['tp']})\n" in record["states"]


def test_a_job_of_which_a_rank_was_killed(tmp_path: Path) -> None:
    with hanging(tmp_path) as job:
        ranks = [process for process in psutil.Process(job.pid).children(recursive=True) if is_rank(process, 1)]
        ranks[0].kill()
    assert job.returncode == 128 + signal.SIGKILL
    verdict = examine(tmp_path)["verdict"]
    waits = f"rank 2 waits in all_reduce (mesh.py:{LINES['tp']}), collective 5 of mesh_tp (ranks 2 and 3)"
    assert waits in verdict["text"]
    assert 1 in verdict["guilty"]


def test_a_restart_does_not_wait_for_an_examination(tmp_path: Path) -> None:
    code = f"import os, sys, time; time.sleep({SILENT_SECONDS} if os.environ['RANK'] == '1' else 1000); sys.exit(4)"
    argv = launch_line(OWN, tmp_path, "-np", "2", "--restarts", "1", sys.executable, "-c", code)
    assert run(argv).returncode == 4
    assert [path.parent.name for path in tmp_path.rglob("examination.json")] == ["restart-1"]


def is_rank(process: psutil.Process, rank: int) -> bool:
    return str(SCRIPT) in process.cmdline() and process.environ().get("RANK") == str(rank)
