"""ddlrun doctor: a job that runs, one that has ended, and one that was not examined."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from ddlrun.plan.run_dir import RunDir
from tests.conftest import OWN, launch_line
from tests.support.json_schemas import validate_run_folder
from tests.support.launches import run
from tests.support.waiting import wait_until

DOCTOR = [sys.executable, "-m", "ddlrun", "doctor"]
SCRIPT = """
import sys
def load(path):
    with open(path) as file:
        return file.read()
print("up", flush=True)
print("n1:714:900 [0] NCCL INFO Using network Socket", flush=True)
load(sys.argv[1])
"""


def test_a_job_is_examined_while_it_runs_and_the_result_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    argv = launch_line(OWN, tmp_path, "-np", "2", str(tmp_path / "train.py"), str(fifo))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline()[-3:] for _ in range(4)) == ["et\n"] * 2 + ["up\n"] * 2
        early = run(DOCTOR, "--interval", "0.1", str(tmp_path / "run"))
        shown = json.loads(run(DOCTOR, "--json", "--interval", "0.1", str(tmp_path / "run")).stdout)
        job.terminate()
        job.stdout.read()
    os.close(writer)
    assert early.returncode == 0, early.stderr
    assert validate_run_folder(tmp_path / "run") >= {"examination.json", "outcome.json"}
    text = f"ranks 0 and 1 read {fifo} (load, train.py:5: return file.read())"
    assert (shown["verdict"]["hangs"], shown["verdict"]["text"]) == (True, text)
    assert "has ended" not in early.stderr
    later = run(DOCTOR, str(tmp_path / "run"))
    assert re.fullmatch(
        r"ddlrun: note: run run has ended; this is its examination of \d\d-\d\d \d\d:\d\d\n", later.stderr
    )
    assert later.stdout.startswith(f"hang: {text}\n\nstate of ranks 0-1 on localhost:\nprocess ")
    assert later.stdout.endswith("\nNCCL on localhost: Socket\n")
    assert "      load (train.py:5)\n      <module> (train.py:8)\n" in later.stdout


# The ranks compute in one function, and print nothing, until the job has been examined twice.
SILENT = """
import os, sys
def compute(path):
    examinations = set()
    while len(examinations) < 2:
        sum(range(100_000))
        if os.path.exists(path):
            examinations.add(os.stat(path).st_mtime_ns)
compute(sys.argv[1])
"""


def test_a_silent_job_that_computes_in_one_function_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SILENT)
    options = ("-np", "2", "--stall-timeout", "2")
    record = tmp_path / "run" / "examination.json"
    done = run(launch_line(OWN, tmp_path, *options, str(tmp_path / "train.py"), str(record)))
    assert done.returncode == 0, done.stderr
    verdict = json.loads(record.read_text())["verdict"]
    assert (verdict["finding"], verdict["hangs"], verdict["moved"]) == ("running", False, False)
    assert "no hang: ranks compute, and none waits for another: ranks 0 and 1 run compute (train.py:" in done.stderr
    assert "state of rank" not in done.stderr


# Rank 1 waits for rank 0, which prints until the job has been examined.
PRINTING = """
import os, sys, time
print("up", flush=True)
if os.environ["RANK"] == "1":
    open(sys.argv[2]).read()
else:
    while not os.path.exists(sys.argv[1]):
        print("batch", flush=True)
        time.sleep(0.1)
    open(sys.argv[2], "w").close()
"""


def test_a_job_of_which_a_rank_prints_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTING)
    os.mkfifo(tmp_path / "fifo")
    record = tmp_path / "run" / "examination.json"
    words = (str(tmp_path / "train.py"), str(record), str(tmp_path / "fifo"))
    done = run(launch_line(OWN, tmp_path, "-np", "2", "--stall-timeout", "2", *words))
    assert done.returncode == 0, done.stderr
    verdict = json.loads(record.read_text())["verdict"]
    assert (verdict["finding"], verdict["hangs"], verdict["moved"]) == ("blocked", False, True)


# A rank that prints a line at SIGTERM, and does not end.
STAYING = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("stays", flush=True))
print("up", flush=True)
while True:
    signal.pause()
"""


def test_a_run_that_ends_while_its_examination_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STAYING)
    argv = launch_line(OWN, tmp_path, "-np", "1", "--grace", "300", str(tmp_path / "train.py"))
    files = RunDir(str(tmp_path / "run"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline().endswith("up\n")
        job.send_signal(signal.SIGINT)
        assert job.stdout.readline().endswith("stays\n")
        with subprocess.Popen([*DOCTOR, files.path], stderr=subprocess.PIPE, text=True) as doctor:
            wait_until(lambda: os.path.exists(files.examination_request))
            job.send_signal(signal.SIGINT)
            job.stdout.read()
            _, errors = doctor.communicate()
    assert (doctor.returncode, "it has ended, and was not examined while it ran" in errors) == (2, True), errors


def test_a_run_that_has_ended_and_was_not_examined(tmp_path: Path) -> None:
    assert run(launch_line(OWN, tmp_path, "-np", "1", "true")).returncode == 0
    done = run(DOCTOR, str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "run run: it has ended, and was not examined while it ran" in done.stderr
