"""ddlrun report: pages and traces of real runs, read as text and in a real browser."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS, launch_line
from tests.support import needs
from tests.support.browser import Browser, find_browser
from tests.support.json_schemas import validate_run_folder
from tests.support.page_scripts import CONTRASTS, EMPTY, STYLES
from tests.support.processes import started

ROOT = Path(__file__).parents[2]
TRAIN = """
import sys, time
import numpy as np
from ddlrun import ddl
ddl.init()
x = np.ones(30_000, np.float32)
longest = 0.0  # of all ranks and steps so far: the slow rank takes longer, however busy the machine is
for step in range(35):  # with the first number 36 iterations: 5 reports of 6 after the first, and time for the last
    began = time.perf_counter()
    time.sleep(0.004)
    longest = max(longest, ddl.all_reduce(time.perf_counter() - began, "max"))
    if ddl.rank() == int(sys.argv[1]):
        time.sleep(2 * longest)
    ddl.all_reduce(x, in_place=True)
if ddl.rank() == int(sys.argv[2]):
    raise ValueError("no such <b>batch</b> & so on")
"""
OPTIONS = "-mode r -dump_iter 6 -rebind_iter 5"
LINES = "[...document.querySelectorAll('polyline:not(.back) title')].map((title) => title.textContent)"
SECTIONS = "[...document.querySelectorAll('section:not([hidden])')].map((part) => part.id)"
ROWS = "[...document.querySelectorAll('#rows tr')].map((row) => row.dataset.rank)"


def report(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", "report", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=300)


def page_of(run: Path, folder: Path, *words: object) -> str:
    path = folder / "page.html"
    done = report(run, "-o", path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(path)
    return path.read_text()


def data_of(page: str) -> dict[str, Any]:
    """Return the data in a page, which refers to nothing outside it."""
    assert re.findall(r'(?:src|href)="[^"]*|url[(]|@import', page) == ['href="data:,', 'href="#rank']
    data: dict[str, Any] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return data


def section(data: dict[str, Any], title: str) -> dict[str, Any]:
    found: dict[str, Any] = next(part for part in data["content"]["sections"] if part["title"] == title)
    return found


def texts_of(data: dict[str, Any], title: str) -> list[str]:
    found: list[str] = next(column["texts"] for column in data["content"]["columns"] if column["title"] == title)
    return found


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four ranks here: rank 2 is slow, and rank 1 fails at the end."""
    folder = tmp_path_factory.mktemp("failed")
    argv = launch_line(MPIRUNS[5], folder, "-np", "4", "--env", "MY_TOKEN=geheim")
    (folder / "train.py").write_text(TRAIN)
    environ = {**os.environ, "DDL_OPTIONS": OPTIONS, "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = subprocess.run(
        [*argv, str(folder / "train.py"), "2", "1"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return folder / "run"


def test_the_page_of_a_failed_run_has_the_contents_of_its_folder(failed: Path, tmp_path: Path) -> None:
    page = page_of(failed, tmp_path)
    data = data_of(page)
    assert (data["script"], data["state"]) == ("train.py", "failed")
    assert data["content"]["job"] == "4 ranks on localhost (4x1x1)"
    assert re.fullmatch(r"failed with exit code 1 after \S+ s: rank 1 on \S+", data["status"])
    assert "ValueError: no such <b>batch</b> & so on" in data["content"]["failure"]
    assert "ValueError: no such <b>batch</b>" in data["logs"]["1"]
    assert ["MY_TOKEN", "<redacted>"] in section(data, "Environment")["facts"]
    assert "geheim" not in page
    assert "<b>" not in page
    learners = section(data, "Learners")
    assert [len(chart["lines"]) for chart in learners["charts"]] == [4, 2, 4, 1]
    dimensions, slow = learners["tables"]
    assert re.fullmatch(r"The last report: iterations 26 to 31, mode r, [\d.]+ ms each", dimensions["caption"])
    assert dimensions["rows"][0][:4] == ["X", "4", "ring", "0.18"]
    titles = ["first at", "rank", "host", "finding", "cause", "checks", "times the median"]
    row = next(dict(zip(titles, row, strict=True)) for row in slow["rows"] if row[3] == "slow")
    assert slow["columns"] == titles
    assert (row["rank"], int(row["checks"]) > 0, float(row["times the median"]) > 1) == ("2", True, True)
    assert [part["title"] for part in data["content"]["sections"]] == ["Learners", "Plan", "Environment"]
    assert [len(texts_of(data, title)) for title in ("cores", "computing, ms", "most memory")] == [4, 4, 4]
    validate_run_folder(failed)


def test_the_page_names_the_ranks_that_ddlrun_ended(failed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(failed, tmp_path / "run"))
    outcome = json.loads((run / "outcome.json").read_text())
    # A program may handle SIGTERM and exit with 0.
    ends = [end | {"exit_code": 0, "signal": None, "ordered": end["rank"] == 3} for end in outcome["ends"]]
    (run / "outcome.json").write_text(json.dumps(outcome | {"ends": ends}))
    ends = texts_of(data_of(page_of(run, tmp_path)), "end")
    assert ends == [*["exit code 0"] * 3, "ended by ddlrun: exit code 0"]


def test_a_trace_has_each_phase_of_each_rank(failed: Path, tmp_path: Path) -> None:
    page_of(failed, tmp_path, "--trace", tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    events = [event for event in trace if event["ph"] == "X"]
    assert {event["ph"] for event in trace} == {"X", "M"}
    assert all(event["ts"] >= 0 < event["dur"] and event["pid"] > 0 for event in events)
    spans = {
        (event["pid"] - 1, event["name"], event["args"]["iteration"]): (event["ts"], event["ts"] + event["dur"])
        for event in events
    }
    names, last = ("iteration", "X reduce-scatter", "X allgather"), (7, 13, 19, 25, 31)
    assert sorted(spans) == sorted((rank, name, number) for rank in range(4) for name in names for number in last)
    for rank in range(4):
        for number in last:
            whole, scatter, gather = (spans[rank, name, number] for name in names)
            assert whole[0] <= scatter[0] <= gather[0]
            assert gather[1] <= whole[1] + 1e-2
    for rank, name in {(rank, name) for rank, name, _ in spans}:  # Perfetto would move events that overlap in a row
        row = [spans[rank, name, number] for number in last]
        assert all(early[1] <= late[0] for early, late in zip(row, row[1:], strict=False))
    threads = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert threads == set(names)


def test_in_a_browser(failed: Path, tmp_path: Path) -> None:
    if not find_browser():
        needs.skip("no Chromium", "sudo apt-get install chromium-headless-shell")
    page_of(failed, tmp_path)
    with Browser(f"file://{tmp_path}/page.html") as page:
        assert page.evaluate(EMPTY) == []
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page.set_view(width, scheme)
                for part in ("document.documentElement", "document.querySelector('#ranks .scroll')"):
                    assert page.evaluate(f"{part}.scrollWidth <= {part}.clientWidth"), (width, part)
                texts, ink, lines, line = page.evaluate(CONTRASTS)
                assert (texts > 80, lines >= 11) == (True, True)
                assert (ink >= 4.5, line >= 3) == (True, True), (width, scheme, ink, line)
        styles = {"rank 0": ["s0 d0"], "rank 1": ["s1 d0"], "rank 2": ["s2 d0"], "rank 3": ["s3 d0"]}
        assert page.evaluate(STYLES) == styles
        assert page.evaluate(ROWS) == ["1", "0", "2", "3"]
        page.click('tr[data-rank="3"] button')
        assert set(page.evaluate(LINES)) & styles.keys() == {"rank 3"}
        assert "package" in page.evaluate("document.getElementById('facts').textContent")
        assert page.evaluate(EMPTY) == []
        page.click("#all")
        assert set(page.evaluate(LINES)) >= styles.keys()
        page.evaluate("byId('filter').value = '2'; show()")
        assert (page.evaluate(ROWS), page.evaluate(STYLES)["rank 2"]) == (["2"], ["s2 d0"])
        assert page.console == []


def test_runs_under_way_and_runs_without_reports(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    assert "no run was started here; name the folder of one" in report(**state).stderr
    launch = [sys.executable, "-m", "ddlrun", "launch", "--mpirun", MPIRUNS[5], "-np", "1"]
    argv = [*launch, "sh", "-c", "echo on; read x"]
    with started(
        argv, env={**os.environ, **state}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as job:
        assert b"on" in job.stdout.readline()
        going = report(**state)
        job.communicate(b"\n", timeout=300)
    assert job.returncode == 0
    page = Path(going.stdout.strip())
    assert data_of(page.read_text())["status"].startswith("running")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    run = page.parent
    identity = json.loads((run / "plan.json").read_text())["run_id"]
    for name in (identity, identity[:-2], identity.partition("-")[2], "last", str(run)):
        assert (report(name, **state).stdout, job.returncode) == (f"{page}\n", 0)
    data = data_of(page.read_text())
    assert data["status"].startswith("succeeded after ")
    assert [part["title"] for part in data["content"]["sections"]] == ["Plan", "Environment"]  # none without content
    titles = [column["title"] for column in data["content"]["columns"]]
    assert titles == ["package", "cores", "threads", "actual CPUs", "most memory", "end"]
    assert data["samples"] == []
    if find_browser():
        with Browser(f"file://{page}") as shown:
            assert shown.evaluate(EMPTY) == []
            assert shown.evaluate("[...document.querySelectorAll('section:not([hidden])')].map((part) => part.id)") == [
                "ranks"
            ]
            assert shown.evaluate("document.title").startswith("sh, ")
    page.unlink()
    traced = report(run, "--trace", tmp_path / "t.json")
    assert (traced.returncode, page.exists(), (tmp_path / "t.json").exists()) == (2, True, False)
    assert "no phases of an allreduce: scripts that use ddlrun.ddl write them with DDL_OPTIONS" in traced.stderr
    elsewhere = tmp_path / "elsewhere"
    subprocess.run([*launch, "--run-dir", str(elsewhere), "true"], env={**os.environ, **state}, check=True)
    assert report(**state).stdout == f"{elsewhere}/report.html\n"
    assert report(json.loads((elsewhere / "plan.json").read_text())["run_id"], **state).returncode == 0


def test_incomplete_folders(failed: Path, tmp_path: Path) -> None:
    assert "run 'x9': no run of this name was started here" in report("x9").stderr
    for folder in (tmp_path, f"{tmp_path}/nowhere"):
        assert "there is no plan.json in it; ddlrun runs lists the runs" in report(folder).stderr
    old = tmp_path / "run"
    shutil.copytree(failed, old)
    (old / "outcome.json").write_text('{"exit_code": 1, "sig')
    (old / "ddl.jsonl").write_text('{"event": "new", "time": 1}\n' + (failed / "ddl.jsonl").read_text()[:-30])
    data = data_of(page_of(old, tmp_path))
    assert data["content"]["notes"][0] == "outcome.json was not written to its end"
    assert re.fullmatch(r"2 of \d+ lines of ddl.jsonl cannot be read", data["content"]["notes"][1])
    (old / "outcome.json").unlink()
    assert data_of(page_of(old, tmp_path))["status"] == "lost: its ddlrun was killed, or its host failed"
    (old / "run.json").unlink()
    assert data_of(page_of(old, tmp_path))["status"] == "starting"
    plan = json.loads((old / "plan.json").read_text())
    del plan["machines"][0]["summary"]
    (old / "plan.json").write_text(json.dumps(plan))
    data = data_of(page_of(old, tmp_path))
    assert len(data["content"]["places"]) == 4
    problem = f"the records of this run are not as this ddlrun ({plan['version']}) writes them: KeyError 'summary'"
    assert problem in data["content"]["notes"]
    assert "-o /nowhere/page.html: No such file" in report(failed, "-o", "/nowhere/page.html").stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(hosts_per_rack=2, racks=2) as up:
        yield up


@pytest.mark.extra
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_page_of_hosts_has_their_check_and_all_dimensions(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    argv = [*launch_line(MPIRUNS[5], tmp_path, "-H", "h[1-4]", "--topology", "1x2x2", "--mode", "r"), "--env"]
    argv += [f"DDL_OPTIONS={OPTIONS}", "--env", "OMPI_MCA_mpi_yield_when_idle=1", str(tmp_path / "train.py"), "3", "-1"]
    done = cluster.run("h1", argv, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    data = data_of(page_of(tmp_path / "run", tmp_path, "--trace", tmp_path / "trace.json"))
    assert data["content"]["job"] == "4 ranks on h[1-4] (1x2x2)"
    assert ["tcp", "h[1-4]", "ok"] in [row[:3] for row in section(data, "Check of the hosts")["tables"][0]["rows"]]
    dimensions, slow = section(data, "Learners")["tables"]
    assert [row[:3] for row in dimensions["rows"]] == [["Y", "2", "ring"], ["Z", "2", "ring"]]
    assert ["3", "h4", "slow"] in [row[1:4] for row in slow["rows"]]
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    phases = {f"{axis} {phase}" for axis in "YZ" for phase in ("reduce-scatter", "allgather")}
    assert {event["name"] for event in trace if event["ph"] == "X"} == {"iteration", *phases}
    assert {event["args"]["name"] for event in trace if event["name"] == "process_name"} >= {"rank 3 on h4"}
