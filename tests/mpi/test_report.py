"""ddlrun report: pages and traces of real runs, read as text and in a real browser."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS, launch_line
from tests.support import needs
from tests.support.browser import Browser, find_browser
from tests.support.json_schemas import validate_run_folder
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
VOID = {"meta", "link", "br"}
CONTRASTS = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255).map(
      (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = (e) => getComputedStyle(e);
  const behind = (e) => {
    const core = e.closest(".core");
    if (core) return style(core.querySelector("rect")).fill;
    while (/, 0\\)$/.test(style(e).backgroundColor)) e = e.parentElement;
    return style(e).backgroundColor;
  };
  const contrast = (ink, e) => {
    const [low, high] = [light(ink), light(behind(e))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const seen = [...document.body.querySelectorAll("*")].filter((e) => e.getClientRects().length);
  const texts = seen.filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  const inks = texts.map((e) => contrast(e instanceof SVGElement ? style(e).fill : style(e).color, e));
  const lines = seen.filter((e) => e.matches("polyline")).map((e) => contrast(style(e).stroke, e));
  return [inks.length, Math.min(...inks), lines.length, Math.min(...lines)];
})()
"""
SHOWN = "[...document.querySelectorAll('tr[data-local]')].filter((r) => r.offsetParent).map((r) => r.dataset.rank)"
BRIGHT = "[...document.querySelectorAll('polyline[data-rank]:not(.off)')].map((l) => l.dataset.rank)"
LIT = "[...document.querySelectorAll('.core:not(.off)')].map((c) => c.dataset.local)"


def report(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", "report", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=300)


def page_of(run: Path, folder: Path, *words: object) -> str:
    path = folder / "page.html"
    done = report(run, "-o", path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(path)
    return path.read_text()


class Strict(HTMLParser):
    """A parser that rejects unclosed tags and references to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        self.text += " "
        values = dict(attrs)
        assert "src" not in values
        assert (values.get("href") or "#").startswith(("#", "data:"))
        assert tag != "th" or values["scope"] in ("row", "col")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        self.text += data if self.open and self.open[-1] not in ("script", "style") else ""


def read(page: str) -> str:
    """Return the text of a page, with white space folded."""
    parser = Strict()
    parser.feed(page)
    assert parser.open == []
    return re.sub(r"\s+", " ", parser.text)


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
    text = read(page)
    assert "4x1x1: 4 ranks on localhost" in text
    assert 'id="check"' not in page
    assert re.search(r"The run failed with exit code 1 after [\d.]+ s: rank 1 on \S+\.", text)
    assert "ValueError: no such <b>batch</b> & so on" in text
    assert "MY_TOKEN <redacted>" in text
    assert "geheim" not in page
    assert re.search(r"The last report: iterations 26 to 31, mode r, [\d.]+ ms each dimension .* X 4 ring 0\.18 ", text)
    assert page.count("<polyline") == 1 + 2 + 4 + 4
    validate_run_folder(failed)
    events = [json.loads(line) for line in (failed / "ddl.jsonl").read_text().splitlines()]
    assert (2, "slow") in [(event.get("rank"), event["event"]) for event in events]
    assert re.search(r"2 \S+ slow [\d.]+ ", text)
    assert re.search(r"Their own messages .*: rank 2 on \S+ is slow, [\d.]+ times the median in 3 checks: ", text)


def test_the_page_names_the_ranks_that_ddlrun_ended(failed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(failed, tmp_path / "run"))
    outcome = json.loads((run / "outcome.json").read_text())
    # A program may handle SIGTERM and exit with 0.
    ends = [end | {"exit_code": 0, "signal": None, "ordered": end["rank"] == 3} for end in outcome["ends"]]
    (run / "outcome.json").write_text(json.dumps(outcome | {"ends": ends}))
    assert read(page_of(run, tmp_path)).count(" exit code 0, ended by ddlrun") == 1


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
        for width in (1280, 360):
            for scheme in ("light", "dark"):
                page.set_view(width, scheme)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                texts, ink, lines, line = page.evaluate(CONTRASTS)
                assert (texts > 100, lines) == (True, 11)
                assert (ink >= 4.5, line >= 3) == (True, True), (width, scheme, ink, line)
        everything = page.evaluate(SHOWN), page.evaluate(BRIGHT), page.evaluate(LIT)
        assert everything[2]
        assert everything[:2] == (["0", "1", "2", "3"], ["0", "1", "2", "3"] * 2)
        page.click('tr[data-rank="3"] button')
        assert (page.evaluate(SHOWN), page.evaluate(BRIGHT)) == (["3"], ["3", "3"])
        lit = page.evaluate(LIT)
        assert lit
        assert all("3" in ranks.split() for ranks in lit)
        assert "rank 3 on localhost: local rank 3" in page.evaluate(
            "document.querySelector('#filter output').textContent"
        )
        page.click("#filter button")
        assert (page.evaluate(SHOWN), page.evaluate(BRIGHT), page.evaluate(LIT)) == everything
        assert page.console == []
        page.set_view(1280, script=False)
        page.open(f"file://{tmp_path}/page.html")
        page.set_view(1280)
        assert page.evaluate("document.getElementById('filter').hidden")
        assert page.evaluate(SHOWN) == ["0", "1", "2", "3"]


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
    assert "The run is under way." in read(page.read_text())
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    run = page.parent
    identity = json.loads((run / "plan.json").read_text())["run_id"]
    for name in (identity, identity[:-2], identity.partition("-")[2], "last", str(run)):
        assert (report(name, **state).stdout, job.returncode) == (f"{page}\n", 0)
    text = read(page.read_text())
    assert "The run succeeded after" in text
    assert "computing, ms" not in text
    sections = ["placement", "ranks", "plan", "environment"]  # none without content
    assert re.findall(r'<h2 id="(\w+)"', page.read_text()) == sections
    assert re.findall(r'<li><a href="#(\w+)"', page.read_text()) == sections
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
    assert "there is no plan.json in it; name a run's folder" in report(tmp_path).stderr
    assert "nowhere: it is no folder" in report(f"{tmp_path}/nowhere").stderr
    old = tmp_path / "run"
    shutil.copytree(failed, old)
    plan = json.loads((old / "plan.json").read_text())
    (old / "plan.json").write_text(json.dumps({key: plan[key] for key in plan if key not in ("version", "written")}))
    (old / "outcome.json").write_text('{"exit_code": 1, "sig')
    (old / "ddl.jsonl").write_text('{"event": "new", "time": 1}\n' + (failed / "ddl.jsonl").read_text()[:-30])
    text = read(page_of(old, tmp_path))
    assert "an older ddlrun wrote this folder: it has no time of start and no check" in text
    assert "outcome.json was not written to its end" in text
    assert re.search(r"2 of \d+ lines of ddl.jsonl cannot be read", text)
    assert "The run has no recorded end: ddlrun was killed, runs on another host, or could not write" in text
    (old / "outcome.json").unlink()
    (old / "output.order").unlink()
    assert "The run was planned, and not started." in read(page_of(old, tmp_path))
    del plan["machines"]
    (old / "plan.json").write_text(json.dumps(plan))
    strange = report(old)
    assert (strange.returncode, len(strange.stderr.splitlines())) == (2, 1)
    assert "its plan or outcome is not as this ddlrun writes it: KeyError 'machines'; report with the" in strange.stderr
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
    text = read(page_of(tmp_path / "run", tmp_path, "--trace", tmp_path / "trace.json"))
    assert "1x2x2: 4 ranks on h[1-4] The run succeeded after" in text
    assert re.search(r"tcp h\[1-4\] ok Environment Set by ddlrun", text)
    assert re.search(r"Y 2 ring 0\.\d+ [\d.]+ [\d.]+ Z 2 ring 0\.", text)
    assert re.search(r"3 h4 slow [\d.]+ ", text)
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    phases = {f"{axis} {phase}" for axis in "YZ" for phase in ("reduce-scatter", "allgather")}
    assert {event["name"] for event in trace if event["ph"] == "X"} == {"iteration", *phases}
    assert {event["args"]["name"] for event in trace if event["name"] == "process_name"} >= {"rank 3 on h4"}
