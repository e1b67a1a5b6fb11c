"""ddlrun runs, logs, rerun and kill: the commands about earlier and present runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.runs.state_folders import elsewhere
from tests.conftest import OWN, launch_line
from tests.support import needs
from tests.support.json_schemas import validate_run_folder
from tests.support.launches import run
from tests.support.processes import started, wait_for

pytestmark = pytest.mark.openmpi(5)

DDLRUN = [sys.executable, "-m", "ddlrun"]
# Fails without "ok", not before each rank has written: the first failure ends the others.
PRINT = """
echo out $OMPI_COMM_WORLD_RANK $DDLRUN_RUN $*; echo err >&2
[ "$1" = ok ] && exit
touch $DIR/$DDLRUN_RUN.$OMPI_COMM_WORLD_RANK
until [ $(ls $DIR/$DDLRUN_RUN.* | wc -l) -eq $OMPI_COMM_WORLD_SIZE ]; do sleep 0.1; done
exit 1
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state folder that all commands use; jobs find its parent as DIR."""
    monkeypatch.setenv("DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ddlrun"


def list_runs() -> list[dict[str, object]]:
    listed = json.loads(run(DDLRUN, "runs", "--json").stdout)
    return list(listed["runs"])


def test_an_earlier_run(mpirun: str, tmp_path: Path, state: Path) -> None:
    line = launch_line(mpirun, tmp_path)
    failed = run(line, "-np", "2", "--output", "no-tag", "sh", "-c", PRINT, "sh")
    assert failed.returncode == 1
    names = ("plan.json", "binding.json", "events.jsonl", "outcome.json", "run.json")
    assert validate_run_folder(tmp_path / "run") == {*names}
    (first,) = list_runs()
    name = str(first["run"])
    assert f"\nrun: {name}\n" in failed.stderr
    assert f"ddlrun: exit code 1; run {name}; logs: {tmp_path}/run\n" in failed.stderr
    assert (first["state"], first["exit_code"], first["ranks"]) == ("failed", 1, 2)
    word = name.partition("-")[2]
    logs = run(DDLRUN, "logs", word)
    assert sorted(logs.stdout.splitlines()) == [f"out 0 {name}", f"out 1 {name}"]
    assert "err\n" in logs.stderr
    of_rank = run(DDLRUN, "logs", name, "--rank", "1")
    assert (sorted(of_rank.stdout.splitlines()), of_rank.stderr) == (["err", f"out 1 {name}"], "")
    assert run(DDLRUN, "logs", "--rank", "0-1", "-n", "0").stdout == ""
    assert "rank 2: the run has 2 ranks, numbered from 0" in run(DDLRUN, "logs", "--rank", "2").stderr
    again = run(DDLRUN, "rerun", "-n", "1", "--", "ok")
    second = list_runs()[0]
    assert (again.returncode, again.stdout) == (0, f"out 0 {second['run']} ok\n"), again.stderr
    assert f"ddlrun: rerun of {name} in {os.getcwd()}: ddlrun launch --mpirun {mpirun} " in again.stderr
    assert (second["state"], second["run_dir"]) == ("succeeded", f"{state}/runs/{second['run']}")
    assert run(DDLRUN, "rerun", word, "-np", "1", "--restarts", "1", "--keep-runs", "0").returncode == 1
    restart, third = list_runs()
    assert restart["run"] == f"{third['run']}-1"
    assert run(DDLRUN, "logs", str(restart["run"])).stdout == f"out 0 {restart['run']}\n"
    assert (tmp_path / "run" / "plan.json").exists()


@pytest.mark.usefixtures("state")
def test_a_run_that_was_refused_has_an_outcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = ("--web", str(taken.getsockname()[1])), ("--output-filename", "/proc/nowhere")
        for options in refused:
            assert run([*DDLRUN, "launch", "--process-manager", OWN, *options, "true"]).returncode == 2
    assert [(past["state"], past["exit_code"]) for past in list_runs()] == [("failed", 2)] * len(refused)


def test_present_runs(mpirun: str, tmp_path: Path, state: Path) -> None:
    """The jobs write to pipes: an ambiguous kill that ended one of them would end its lines."""
    wait = 'echo on; read line; echo "$line"'
    line = [*launch_line(mpirun, tmp_path, "--quiet"), "-np", "1", "sh", "-c", wait]
    del line[line.index("--run-dir") : line.index("--run-dir") + 2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started(line, **pipes) as ended, started(line, **pipes) as printed:
        assert (ended.stdout.readline(), printed.stdout.readline()) == ("on\n", "on\n")
        names = sorted(path.name for path in (state / "active").iterdir())
        refused = run(DDLRUN, "kill", names[0][:6])
        assert refused.returncode == 2
        assert f"run '{names[0][:6]}' is ambiguous: {', '.join(names)}; write more of the name" in refused.stderr
        assert [past["state"] for past in list_runs()] == ["running", "running"]
        of = {record["pid"]: str(record["run"]) for record in map(read_record, (state / "active").iterdir())}
        with started([*DDLRUN, "logs", "-f", of[printed.pid]], stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout.readline() == "on\n"
            assert run(DDLRUN, "kill", of[ended.pid].partition("-")[2]).returncode == 0
            wait_for(lambda: ended.poll() is not None)
            printed.stdin.write("last\n")
            printed.stdin.close()
            assert follower.stdout.read() == "last\n"
        assert printed.stdout.read() == "last\n"
    assert (ended.returncode, printed.returncode, follower.returncode) == (143, 0, 0)
    states = {past["run"]: past["state"] for past in list_runs()}
    assert states == {of[ended.pid]: "ended", of[printed.pid]: "succeeded"}


def test_a_restart_is_followed(mpirun: str, tmp_path: Path, state: Path) -> None:
    """The first attempt and the second one end when their standard input does."""
    line = [*launch_line(mpirun, tmp_path, "--quiet", "--restarts", "1"), "-np", "1"]
    argv = [*line, "sh", "-c", "echo attempt $DDLRUN_RESTART; read line; exit 3"]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "attempt 0\n"
        assert (state / "last").resolve() == tmp_path / "run"
        with started([*DDLRUN, "logs", "-f", "--rank", "0"], stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout.readline() == "attempt 0\n"
            job.stdin.close()
            assert follower.stdout.read() == "attempt 1\n"
    assert (job.returncode, follower.returncode) == (3, 0)


def read_record(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text()))


# A job that prints MB megabytes, twice, and what is known of it afterwards; the state folder is on a small disk.
ON_A_SMALL_DISK = """
mount -t tmpfs -o $1 none "$XDG_STATE_HOME" || exit 99
for word in first second; do
    "$PYTHON" -m ddlrun launch --process-manager ddlrun --output no-tag sh -c "head -c $2 /dev/zero; echo $word"
done > /dev/null
"$PYTHON" -m ddlrun runs --json
"$PYTHON" -m ddlrun logs | tail -c 7
"""


@pytest.mark.parametrize(
    ("disk", "size", "problems"),
    [
        ("size=12m", 20_000_000, ["no more output is stored", "this run is in /tmp"]),
        ("size=1m", 1_000, ["this run is in /tmp"] * 2),
        ("ro", 1_000, ["this run is in /tmp"] * 2),
    ],
)
def test_a_home_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str, size: int, problems: list[str]
) -> None:
    needs.root()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    try:
        done = run(["unshare", "-m"], "sh", "-c", ON_A_SMALL_DISK, "sh", disk, str(size))
    finally:
        shutil.rmtree(elsewhere(str(tmp_path)), ignore_errors=True)
    listed, end = done.stdout[: -len("second\n")], done.stdout[-len("second\n") :]
    assert [run["state"] for run in json.loads(listed)["runs"]] == ["succeeded"] * 2
    assert end == "second\n"
    told = [line for line in done.stderr.splitlines() if "Read-only" in line or "No space left" in line]
    assert len(told) == len(problems)
    assert all(problem in line for problem, line in zip(problems, told, strict=True))
