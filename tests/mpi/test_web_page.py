"""The web page of a run, in a real browser: live, after the end, and without a valid token."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from ddlrun.metrics.gpu_samples import parse_gpu_sample
from ddlrun.metrics.metrics_file import render_line
from ddlrun.metrics.samples import HostSample
from ddlrun.page.feed import RunFeed
from ddlrun.page.run_files import read_events
from ddlrun.page.server import PageServer
from tests.conftest import OWN, launch_line
from tests.support import needs
from tests.support.browser import Browser, find_browser
from tests.support.nvidia_smi import busy
from tests.support.page_scripts import STYLES
from tests.support.processes import started, wait_for
from tests.support.run_folders import make_run
from tests.support.seeded_runs import SAMPLES, read_samples

HOSTILE = "<img src=x onerror=console.error(1)>"
PROGRAM = f"""
import os, sys, time
print({HOSTILE!r}, os.environ["RANK"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""
ROWS = "[...document.querySelectorAll('#rows tr')].map((row) => row.dataset.rank)"
CELLS = "[...document.querySelectorAll('.cell')].map((cell) => cell.dataset.rank)"
LINES = "[...document.querySelectorAll('polyline')].map((line) => line.points.length)"
POINTS = f"{LINES}.length ? Math.min(...{LINES}) : 0"
TIME = "Math.max(...[...hosts.values()].map((samples) => samples.at(-1).time))"
MARKS = (
    "[...document.querySelectorAll('figure:first-child .mark title')].map((title) => title.textContent.split(':')[0])"
)
TROUBLE = "[...document.querySelectorAll('.cell.trouble')].map((cell) => cell.dataset.rank)"


def text_of(page: Browser, name: str) -> str:
    return str(page.evaluate(f"document.getElementById({name!r}).textContent"))


def filter_by(page: Browser, words: str) -> None:
    page.evaluate(f"document.getElementById('filter').value = {json.dumps(words)}")
    page.evaluate("document.getElementById('filter').dispatchEvent(new Event('input'))")


def read_url(stderr: IO[str]) -> str:
    return next(line.split()[-1] for line in stderr if line.startswith("page: "))


def leave_early(url: str) -> None:
    """Open a page, and close its connection in the middle of its messages."""
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((str(address.hostname), address.port or 0)) as link:
        link.sendall(f"GET {address.path}events HTTP/1.0\r\n\r\n".encode())
        text = b""
        while b"data: " not in text:
            text += link.recv(1 << 20)
        link.shutdown(socket.SHUT_WR)


@pytest.mark.extra
def test_the_page_of_a_launch_is_live_and_stays_after_its_end(tmp_path: Path) -> None:
    if not find_browser():
        needs.skip("no Chromium", "sudo apt-get install chromium-headless-shell")
    (tmp_path / "program.py").write_text(PROGRAM)
    line = launch_line(OWN, tmp_path, "-np", "3", "--web", "0", "--sample-interval", "0.2",
                       "--stall-timeout", "1", "--stall-action", "report")  # fmt: skip
    argv = [*line, str(tmp_path / "program.py"), str(tmp_path / "stop")]
    with started(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        url = read_url(job.stderr)
        with Browser(url) as page:
            page.set_view(1280)
            wait_for(lambda: page.evaluate(CELLS) == ["0", "1", "2"] and page.evaluate(POINTS) >= 2)
            points = page.evaluate(POINTS)
            wait_for(lambda: page.evaluate(POINTS) > points)
            leave_early(url)
            time = page.evaluate(TIME)
            wait_for(lambda: page.evaluate(TIME) > time + 4)  # the lost page was written to
            filter_by(page, "1-2")
            assert (sorted(page.evaluate(ROWS)), page.evaluate(CELLS)) == (["1", "2"], ["1", "2"])
            page.click(".cell[data-rank='2']")
            wait_for(lambda: text_of(page, "log") == f"{HOSTILE} 2\n")
            wait_for(lambda: page.evaluate(MARKS) == ["stall"])
            page.set_view(375)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert text_of(page, "state").startswith("running")
            assert page.console == []
            (tmp_path / "stop").touch()
            wait_for(lambda: text_of(page, "state").startswith("succeeded"))
            job.communicate(timeout=300)
            wait_for(lambda: text_of(page, "link").startswith("no connection"))
            address = urllib.parse.urlsplit(url)
            with PageServer(address.port or 0, str(tmp_path / "run")) as server:
                server.token = address.path.strip("/")
                server.start()
                wait_for(lambda: text_of(page, "link") == "connected")
                wait_for(lambda: page.evaluate(POINTS) > points)
                server.stop()
            assert (page.evaluate(CELLS), page.evaluate(MARKS)) == (["1", "2"], ["stall"])
    assert job.returncode == 0


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[PageServer]:
    """Provide the page of a run whose hosts, verdict and log are hostile."""
    run = make_run(tmp_path, "20261122-tokarumi", exit_code=None, pid=os.getpid())
    samples = (SAMPLES / "storage.jsonl").read_text()
    (run / "metrics.jsonl").write_text(samples.replace('"host": "', f'"host": "{HOSTILE}</script>'))
    (run / "examination.json").write_text(json.dumps({"sentence": HOSTILE}))
    ranks = [{"rank": rank, "host": HOSTILE, "local_rank": rank, "packages": [0], "cores": [0], "gpu": None,
              "threads": HOSTILE, "nics": []} for rank in range(2)]  # fmt: skip
    plan = {"ranks": ranks, "hosts": [{"name": HOSTILE}], "topology": HOSTILE}
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "report.txt").write_text(HOSTILE)
    (run / "ranks").mkdir()
    (run / "ranks/1.log").write_bytes(b"\xff\x1b[31m" + HOSTILE.encode())
    with PageServer(0, str(run)) as server:
        server.start()
        yield server
        server.stop()


@pytest.mark.extra
def test_what_hosts_have_said_is_text(hostile: PageServer) -> None:
    if not find_browser():
        needs.skip("no Chromium", "sudo apt-get install chromium-headless-shell")
    with Browser(hostile.url) as page:
        wait_for(lambda: page.evaluate(ROWS) == ["1", "0"])
        assert page.evaluate(TROUBLE) == ["1"]
        assert text_of(page, "limit").startswith(f"Limit: rank 1 on {HOSTILE}")
        assert text_of(page, "reason") == HOSTILE
        assert text_of(page, "verdict") == HOSTILE
        page.click("#rows button")
        wait_for(lambda: text_of(page, "log") == f"\N{REPLACEMENT CHARACTER}{HOSTILE}")
        assert page.evaluate("document.images.length") == 0
        assert page.console == []


@pytest.mark.extra
def test_axes_are_round_colours_stay_and_rows_are_low(hostile: PageServer) -> None:
    if not find_browser():
        needs.skip("no Chromium", "sudo apt-get install chromium-headless-shell")
    with Browser(hostile.url) as page:
        wait_for(lambda: page.evaluate(ROWS) == ["1", "0"])
        assert page.evaluate("[100, 103.2, 400, 790].map((most) => axisEnd('%', [most]))") == [100, 100, 400, 800]
        assert page.evaluate("[12, 1234, 2e9].map((most) => axisEnd('B', [most]))") == [1000, 1600, 2e9]
        before = page.evaluate(STYLES)
        assert before == {"rank 0": ["s0 d0"], "rank 1": ["s1 d0"]}
        page.evaluate("latest.order.reverse(); show()")
        assert page.evaluate(STYLES) == before
        page.set_view(390)
        page.evaluate("latest.findings[0].cause = 'word '.repeat(40); show()")
        lines = "getComputedStyle(document.querySelector('#rows td')).lineHeight"
        height = page.evaluate("document.querySelector('#rows [data-rank=\"1\"]').offsetHeight")
        assert height < 2 * float(page.evaluate(lines)[:-2])


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url) as reply:  # noqa: S310 - our own server
            return int(reply.status), str(reply.read().decode())
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_only_the_token_opens_the_page(hostile: PageServer) -> None:
    assert "<title>ddlrun</title>" in fetch(hostile.url)[1]
    root = hostile.url.removesuffix(f"{hostile.token}/")
    others = ("", "events", "x" * len(hostile.token) + "/", f"{hostile.token[:-1]}/", f"\xe4/{hostile.token}/")
    assert [fetch(root + urllib.parse.quote(path))[0] for path in others] == [403] * len(others)
    wrong = ("x", "../", "log", "log?rank=-1", "log?rank=../../plan", f"log?rank={'9' * 5000}")
    assert [fetch(hostile.url + path)[0] for path in wrong] == [404, 404, 400, 400, 400, 400]
    assert fetch(f"{hostile.url}log?rank=7") == (200, "")


def test_a_page_gets_only_what_is_new(hostile: PageServer) -> None:
    feed = RunFeed(hostile.folder)
    first = feed.read()
    assert first is not None
    assert first["content"] is not None
    assert (first["first"], len(first["content"]["places"])) == (True, 2)
    assert feed.read() is None
    path = Path(hostile.folder) / "metrics.jsonl"
    text = path.read_text()
    last = text.splitlines()[-1]
    later = json.dumps({**json.loads(last), "time": json.loads(last)["time"] + 1})
    (path.parent / "new").write_text(f"{text}{later}\n")  # as where ddlrun thins out the file
    (path.parent / "new").replace(path)
    second = feed.read()
    feed.close()
    assert second is not None
    assert (second["first"], len(second["samples"]) + len(second["hosts"]), second["content"]) == (False, 1, None)


def test_failures_lost_hosts_and_restarts_are_marked(tmp_path: Path) -> None:
    start = {"event": "start", "time": 1, "run_dir": "/runs/a/restart-2", "state": "running"}
    end = {**start, "event": "end", "time": 2, "state": "failed", "lost_hosts": [], "failed_rank": 3, "exit_code": 7}
    events = [start, end, {**end, "lost_hosts": ["n2"]}, {**end, "state": "ended"}, {**start, "run_dir": "/runs/a"}]
    path = tmp_path / "events.jsonl"
    path.write_text("the rest of a line\n" + "".join(f"{json.dumps(event)}\n" for event in events))
    texts = [event["text"] for event in read_events(str(path))]
    assert texts == ["restart 2", "rank 3 failed, exit code 7", "lost n2"]


def test_the_command_prints_the_address_until_it_is_interrupted(hostile: PageServer) -> None:
    argv = [sys.executable, "-m", "ddlrun", "top", hostile.folder, "--web"]
    with started(argv, stderr=subprocess.PIPE, text=True) as command:
        url = command.stderr.readline().split()[-1]
        assert fetch(url)[0] == 200
        command.send_signal(2)
        assert (command.wait(300), command.stderr.read()) == (0, "")
    port = str(hostile.server_port)
    done = subprocess.run([*argv, port], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"ddlrun: error: --web {port}: Address already in use; choose another port\n",
    )


GPU_TITLE = "[...document.querySelectorAll('#titles th')].findIndex((head) => head.textContent === 'GPU %')"
GPU_CELLS = f"[...document.querySelectorAll('#rows tr')].map((row) => row.children[{GPU_TITLE}]?.textContent)"
SHOWN = f"{GPU_TITLE} >= 0 || !document.querySelector('option[value=gpu]').hidden"
HEIGHTS = (
    "[...document.querySelectorAll('figure:first-child polyline')].map((line) => [...line.points].map(({y}) => y))"
)


@pytest.mark.extra
def test_the_page_shows_gpus_where_there_are_any(tmp_path: Path) -> None:
    if not find_browser():
        needs.skip("no Chromium", "sudo apt-get install chromium-headless-shell")
    run = make_run(tmp_path, "20261122-tokarumi", exit_code=None, pid=os.getpid())
    samples = read_samples(str(SAMPLES / "storage.jsonl"))
    gpu = parse_gpu_sample(f"0, {busy(0)}")
    with PageServer(0, str(run)) as server, (run / "metrics.jsonl").open("a") as file:
        server.start()
        file.write("".join(map(render_line, samples)))
        file.flush()
        with Browser(server.url) as page:
            wait_for(lambda: page.evaluate(ROWS) == ["1", "0"])
            assert not page.evaluate(SHOWN)
            for number, sample in enumerate(samples):
                later = replace(sample, time=sample.time + 100)
                if isinstance(later, HostSample):
                    later = replace(later, gpus=(replace(gpu, utilization=0.25 + 0.5 * (number % 2)),))
                file.write(render_line(later))
            file.flush()
            wait_for(lambda: page.evaluate(GPU_CELLS) in (["", "25"], ["", "75"]))
            assert page.evaluate(SHOWN)
            page.evaluate("document.getElementById('metric').value = 'gpu'")
            page.evaluate("document.getElementById('metric').dispatchEvent(new Event('change'))")
            charts = "[...document.querySelectorAll('figure h3')].map((head) => head.textContent)"
            assert "Hosts: temperature of the hottest GPU" in page.evaluate(charts)
            assert [len(set(heights)) for heights in page.evaluate(HEIGHTS)] == [2]
            page.set_view(375)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.console == []
        server.stop()
