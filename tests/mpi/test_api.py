"""Jobs that a Python program starts: `ddlrun.launch` and `ddlrun.run`."""

import json
import linecache
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import ddlrun
from ddlrun.api.options import OptionValue
from ddlrun.plan.outcome import parse_outcome
from ddlrun.runs.history import read_past_run
from ddlrun.runs.run_list import ListedRun
from ddlrun.runs.run_table import render_runs
from tests.cluster.two_hosts import TwoHosts
from tests.support import needs
from tests.support.processes import mark, running, started, wait_for
from tests.support.waiting import PATIENCE

# A script whose function is pickled by value; its last argument is the time of a `sleep` that each rank starts.
SCRIPT = """
import subprocess, sys
import ddlrun

def wait(seconds):
    subprocess.run(["sleep", seconds], check=True)

if __name__ == "__main__":
    mpirun, run_dir, seconds = sys.argv[1:]
    try:
        ddlrun.run(wait, seconds, np=2, mpirun=mpirun, run_dir=run_dir, heartbeat=300)
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


def rank_times(factor: int) -> int:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    print(f"rank {rank}", os.environ.get("SEED"), flush=True)
    if factor < 0 and rank == 1:
        raise ValueError(f"factor {factor}")
    if factor == 0:
        sys.exit("no factor" if rank == 0 else 0)
    return rank * factor


def test_results_of_a_function_without_mpirun(tmp_path: Path) -> None:
    results = ddlrun.run(len, "abc", np=2, process_manager="ddlrun", framework="torch", run_dir=str(tmp_path / "run"))
    assert results == [3, 3]


def make_generator() -> Iterator[int]:
    return (number for number in range(3))


def test_a_result_that_cannot_be_pickled_is_the_return_value(tmp_path: Path) -> None:
    with pytest.raises(
        ddlrun.JobError, match=r"the return value of rank 0 \(type generator\) cannot be pickled: "
    ) as raised:
        ddlrun.run(partial(make_generator), np=1, process_manager="ddlrun", run_dir=str(tmp_path / "run"))
    assert "Traceback" not in str(raised.value)
    (past,) = [past for past in [read_past_run(str(tmp_path / "run"))] if past is not None]
    assert " ddlrun.run(make_generator)\n" in render_runs([ListedRun(past.run.run, past, {})])


def test_a_time_limit_is_named_as_in_python(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    outcome = ddlrun.launch("sleep", "60", np=1, process_manager="ddlrun", timeout=0.1, run_dir=folder)
    assert (outcome.exit_code, outcome.reason) == (124, "the time limit of 0.1 s (timeout)")
    record = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert record["reason"] == "the time limit of 0.1 s (--timeout)"


CELL = """def divide(number):
    return 1 / number
"""


def test_the_traceback_of_a_cell_shows_its_lines(tmp_path: Path) -> None:
    needs.package("cloudpickle")
    name, namespace = "/tmp/ipykernel_1/2.py", {"__name__": "__main__"}  # noqa: S108 - Jupyter's name
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    exec(compile(CELL, name, "exec"), namespace)  # noqa: S102 - as Jupyter executes a cell
    with pytest.raises(ddlrun.JobError) as raised:
        ddlrun.run(namespace["divide"], 0, np=1, process_manager="ddlrun", run_dir=str(tmp_path / "run"))  # type: ignore[arg-type]
    assert f'  File "{name}", line 2, in divide\n    return 1 / number\n' in str(raised.value)
    (past,) = [past for past in [read_past_run(str(tmp_path / "run"))] if past is not None]
    assert " ddlrun.run(divide)\n" in render_runs([ListedRun(past.run.run, past, {})])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"grace": "soon"}, "grace: 'soon' is not a time, such as 90, 90s or 5m; see ddlrun launch --help"),
        (
            {"foo_bar": 1},
            "no such option foo_bar; options of the script stand after its name; see ddlrun launch --help",
        ),
        ({"np": 3, "topology": "2x1"}, "topology 2x1x1 means 2 ranks, but np 3 means 3"),
        ({"hots": "h1"}, "no such option hots (did you mean hosts?)"),
        ({"np": 1, "share_gpus": "x"}, "Option 'share_gpus=True' does not take a value"),
        ({"H": "a b"}, "H, column 1: 'a b' is not a host name"),
        ({"num_proc": 0}, "num_proc: '0' is not a whole number of at least 1"),
        ({"fetch": "out"}, "fetch has no effect without ship; add ship code"),
        ({"np": 999, "framework": "mpi", "strict_binding": True, "output": "no-tag"}, "per host"),
    ],
    ids=str,
)
def test_an_error_is_raised_in_words_of_python_and_not_printed(
    options: dict[str, OptionValue], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ddlrun.DdlrunError) as raised:
        ddlrun.launch("true", **options)
    assert problem in str(raised.value)
    assert capsys.readouterr().err == ""


@pytest.mark.openmpi(5)
def test_results_errors_and_output_of_a_function(
    mpirun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(factor: int) -> list[int]:
        folder = str(tmp_path / str(factor))
        return ddlrun.run(rank_times, factor, np=2, mpirun=mpirun, run_dir=folder, env={"SEED": "7"}, output="no-tag")

    assert run(3) == [0, 3]
    assert sorted(capsys.readouterr().out.splitlines()) == ["rank 0 7", "rank 1 7"]
    with pytest.raises(ddlrun.JobError, match=r"(?s)rank 1 on .*Traceback.*ValueError: factor -1\Z") as raised:
        run(-1)
    printed = capsys.readouterr().err
    assert "failed: rank 1" in printed
    assert "last lines of its standard error" not in printed  # the error has them
    assert "api/call.py" not in str(raised.value)
    assert isinstance(raised.value.error, ValueError)
    assert (raised.value.rank, raised.value.outcome.exit_code) == (1, 1)
    assert "rank 1" in Path(raised.value.run_dir, "ranks", "1.log").read_text()
    with pytest.raises(ddlrun.JobError, match=r"(?s)rank 0 on .* failed: exit code 1\n\nno factor\Z"):
        run(0)
    assert not [*tmp_path.glob("*/call-*")]


@pytest.mark.openmpi(4)
def test_outcome_of_a_script(mpirun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    fail = ("sh", "-c", "echo out; exit 7")
    outcome = ddlrun.launch(*fail, np=2, mpirun=mpirun, run_dir=str(folder), restarts=1)
    assert outcome.exit_code == 7
    assert outcome.root is not None
    assert outcome.root.exit_code == 7
    assert outcome == parse_outcome(json.loads((folder / "restart-1" / "outcome.json").read_text()))
    printed = capsys.readouterr()
    assert "[0@" in printed.out
    assert "ddlrun: exit code 7; " in printed.err
    with pytest.raises(ddlrun.DdlrunError, match="holds an earlier run") as raised:
        ddlrun.launch("true", np=1, mpirun=mpirun, run_dir=str(folder))
    assert raised.value.exit_code == 2


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_the_example_of_the_page_prints_the_results_it_names(mpirun: str, tmp_path: Path) -> None:
    needs.package("cloudpickle")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    options = f"np=2, mpirun={mpirun!r}, heartbeat=300"
    argv = [sys.executable, "-c", example.replace("np=2", options)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    *printed, results = done.stdout.splitlines()
    assert sorted(line.partition("] ")[2] for line in printed) == ["rank 0 of 2", "rank 1 of 2"], done.stderr
    assert f"here `{results}`" in page


@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_a_function_on_two_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    needs.package("cloudpickle")
    (tmp_path / "train.py").write_text(
        "import os, sys, ddlrun\n"
        "mpirun, folder = sys.argv[1:]\n"
        "options = {'hosts': ['h1:1', 'h2:1'], 'mpirun': mpirun, 'run_dir': folder, 'heartbeat': 300}\n"
        "print(ddlrun.run(lambda: os.uname().nodename, start_timeout=300, **options))\n"
    )
    argv = hosts.argv("h1", [sys.executable, str(tmp_path / "train.py"), mpirun, str(tmp_path / "run")])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "['h1', 'h2']\n", done.stderr


@pytest.mark.extra
@pytest.mark.openmpi(5)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_ends_leaves_no_ranks(mpirun: str, tmp_path: Path, number: signal.Signals) -> None:
    needs.package("cloudpickle")
    seconds = mark()
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = ["env", "--default-signal=INT", sys.executable, "train.py", mpirun, str(tmp_path / "run"), seconds]
    with started(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as script:
        wait_for(lambda: len(running(seconds)) == 2)
        script.send_signal(number)
        errors = script.stderr.read()
        wait_for(lambda: not running(seconds))
    assert script.returncode == (1 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert errors.rstrip().endswith("interrupted")
    wait_for(lambda: not [*(tmp_path / "run").glob("call-*"), *Path(os.environ["TMPDIR"]).glob("ddlrun-launch-*")])
    wait_for((tmp_path / "run" / "outcome.json").exists)
