"""ddlrun top on the samples of a run folder."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlrun.metrics.diagnosis import diagnose
from ddlrun.metrics.gauges import GAUGES
from ddlrun.metrics.history import History
from ddlrun.metrics.openmetrics import CONTENT_TYPE, render_openmetrics
from ddlrun.metrics.openmetrics_server import MetricsServer
from ddlrun.metrics.top_table import COLUMNS, render_table, render_top, sort_by_trouble
from tests.support import needs
from tests.support.ports import reserved_port
from tests.support.processes import started, wait_for
from tests.support.run_folders import make_run
from tests.support.seeded_runs import SAMPLES, read_samples
from tests.support.terminal import ESCAPES, shell_at_terminal

DASHBOARD = Path(__file__).parents[2] / "configs" / "monitoring" / "grafana.json"
DDLRUN = [sys.executable, "-m", "ddlrun"]


@pytest.fixture
def history() -> History:
    history = History()
    history.add(read_samples(str(SAMPLES / "storage.jsonl")))
    return history


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Provide a state folder with a run that has samples, and whose ddlrun is this process."""
    run = make_run(tmp_path / "ddlrun", "20261122-tokarumi", exit_code=None, pid=os.getpid())
    (run / "metrics.jsonl").write_text((SAMPLES / "storage.jsonl").read_text())
    return tmp_path


def run(state: Path, *words: str) -> str:
    environ = {**os.environ, "XDG_STATE_HOME": str(state)}
    return subprocess.run([*DDLRUN, *words], env=environ, capture_output=True, text=True, check=True).stdout


def test_the_table_has_ranks_in_trouble_first_and_80_columns(history: History) -> None:
    lines = render_table(history, diagnose(history))
    assert max(map(len, lines)) <= COLUMNS
    ranks = [line.split()[0] for line in lines[lines.index("") + 2 :] if line[:1].isdigit()]
    assert ranks == ["1", "0"]


def test_many_ranks_are_cut(history: History) -> None:
    samples = history.ranks()["0"]
    for rank in range(2, 50):
        history.add(replace(sample, ranks=str(rank)) for sample in samples)
    lines = render_table(history, diagnose(history), 5)
    assert "... and 45 more" in lines
    assert sort_by_trouble(history.ranks(), diagnose(history))[:3] == ["1", "0", "2"]


def test_top_prints_one_snapshot_without_a_terminal(state: Path) -> None:
    first, limit, *_ = run(state, "top", "toka").splitlines()
    assert first.startswith("20261122-tokarumi: running, ")
    assert limit.startswith("limit: rank 1 on ")


def test_top_prints_json(state: Path) -> None:
    record = json.loads(run(state, "top", "--json"))
    assert [(finding["cause"], finding["ranks"]) for finding in record["findings"]] == [("storage", "1")]
    assert [rank["ranks"] for rank in record["ranks"]] == ["1", "0"]


@pytest.mark.parametrize("key", ["\x03", "q"])
def test_top_follows_the_run_at_a_terminal(key: str, state: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "PS1": "ready "}
    with shell_at_terminal(["sh", "-i"], environ, state) as terminal:
        terminal.resize(30, 80)
        terminal.send(f"{' '.join(DDLRUN)} top\n")
        terminal.wait_for(r"limit: rank 1 on .*\n(.*\n)+1 ")
        terminal.send(key)
        terminal.wait_for("ready")
        terminal.send("echo code $?\n")
        terminal.wait_for("code 0")


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (80, "RANK HOST CPU % BEFORE MEMORY STATE READ/s QUEUE%"),
        (60, "RANK HOST CPU % MEMORY STATE QUEUE%"),
        (40, "RANK HOST CPU % STATE"),
        (20, "RANK CPU % STATE"),
    ],
)
def test_top_leaves_columns_out_of_a_narrow_terminal(columns: int, names: str, history: History) -> None:
    lines = render_top("20261122-tokarumi: running", 0.0, history, columns=columns)
    assert max(map(len, lines)) <= columns
    place = next(number for number, line in enumerate(lines) if line.startswith("RANK"))
    assert " ".join(lines[place].split()) == names[: len(" ".join(lines[place].split()))]
    assert "page I/O"[: max(0, columns - 14)] in lines[place + 1]


def test_what_stays_of_top_does_not_wrap(state: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "PS1": "ready "}
    with shell_at_terminal(["sh", "-i"], environ, state) as terminal:
        terminal.resize(30, 40)
        terminal.send(f"{' '.join(DDLRUN)} top --once\n")
        terminal.wait_for(r"limit: (.*\n)+0 .*\n(.*\n)*.*ready")
    lines = ESCAPES.sub("", terminal.output).replace("\r", "").split("\n")
    assert max(len(line.removeprefix("ready ")) for line in lines[1:-1]) <= 40


def test_top_at_a_terminal_that_does_not_know_its_size(state: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm"}
    with shell_at_terminal([*DDLRUN, "top"], environ, state) as terminal:
        terminal.wait_for(r"limit: rank 1 on .*\n(.*\n)+1 .*\n0 .*\n(.*\n)+.*CPUs")


def test_a_run_without_samples(state: Path) -> None:
    (state / "ddlrun/runs/20261122-tokarumi/metrics.jsonl").unlink()
    assert "no samples: sampling starts after 2 s; --sample-interval 0 disables it" in run(state, "top")
    record = json.loads(run(state, "top", "--json"))
    assert (record["time"], record["ranks"]) == (0.0, [])
    assert run(state, "top", "--openmetrics").endswith("# EOF\n")


def test_metrics_are_openmetrics(state: Path) -> None:
    needs.package("prometheus_client", "prometheus-client")
    from prometheus_client.openmetrics.parser import (  # noqa: PLC0415 - may not be installed
        text_string_to_metric_families,
    )

    parse: Any = text_string_to_metric_families  # without types
    families = {family.name: family for family in parse(run(state, "top", "--openmetrics"))}
    memory = families["ddlrun_rank_memory_bytes"]
    assert memory.unit == "bytes"
    assert {sample.labels["rank"] for sample in memory.samples} == {"0", "1"}
    (finding,) = families["ddlrun_finding_severity_ratio"].samples
    assert (finding.labels["cause"], finding.labels["ranks"]) == ("storage", "1")


def test_promtool_accepts_the_metrics(state: Path) -> None:
    promtool = needs.program("promtool", "prometheus")
    text = run(state, "top", "--openmetrics")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PROMETHEUS_CONFIG = """
scrape_configs:
  - job_name: ddlrun
    scrape_interval: 1s
    static_configs:
      - targets: ["{address}"]
"""


@pytest.mark.extra
def test_prometheus_answers_a_query_about_the_ranks(state: Path) -> None:
    prometheus = needs.program("prometheus", "prometheus")
    environ = {**os.environ, "XDG_STATE_HOME": str(state)}
    with subprocess.Popen([*DDLRUN, "top", "--listen", "0"], env=environ, stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stderr is not None
        address = urllib.parse.urlsplit(ours.stderr.readline().split()[-1]).netloc
        (state / "prometheus.yml").write_text(PROMETHEUS_CONFIG.format(address=address))
        with reserved_port() as port:
            argv = [
                prometheus, f"--config.file={state}/prometheus.yml", f"--storage.tsdb.path={state}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ]  # fmt: skip
            with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as theirs:
                url = f"http://127.0.0.1:{port}/api/v1/query?query=ddlrun_rank_memory_bytes"
                wait_for(lambda: len(query(url)) == 2)
                results = query(url)
                theirs.terminate()
        ours.terminate()
    assert {(result["metric"]["rank"], result["metric"]["run"]) for result in results} == {
        ("0", "20261122-tokarumi"),
        ("1", "20261122-tokarumi"),
    }


def query(url: str) -> list[dict[str, Any]]:
    """Return the results of a query to Prometheus; none while it does not listen."""
    try:
        with urllib.request.urlopen(url) as reply:  # noqa: S310 - on loopback
            return list(json.load(reply)["data"]["result"])
    except OSError:
        return []


def test_labels_are_escaped(history: History) -> None:
    assert r'run="a\"b\\c\n"' in render_openmetrics(history, 'a"b\\c\n')


def test_the_server_serves_one_page_as_long_as_the_run_lasts(history: History) -> None:
    over = threading.Event()
    with MetricsServer(0, lambda: render_openmetrics(history, "r")) as server:
        thread = threading.Thread(target=server.serve_while, args=(lambda: not over.is_set(),))
        thread.start()
        try:
            root = server.url.replace("metrics", "")
            with urllib.request.urlopen(server.url) as reply, urllib.request.urlopen(root) as front:  # noqa: S310
                assert '<a href="/metrics">' in front.read().decode()
                assert reply.headers["Content-Type"] == CONTENT_TYPE
                assert reply.read().decode() == render_openmetrics(history, "r")
            with pytest.raises(urllib.error.HTTPError, match="404: the metrics are at /metrics"):
                urllib.request.urlopen(server.url.replace("metrics", "other"))  # noqa: S310 - our own server
        finally:
            over.set()
            thread.join()


def test_a_port_that_is_in_use_is_an_error(history: History, state: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(state)}
    with MetricsServer(0, lambda: render_openmetrics(history, "r")) as server:
        argv = [*DDLRUN, "top", "--listen", str(server.server_port)]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    problem = f"--listen 127.0.0.1:{server.server_port}: Address already in use; choose another address or port"
    assert (done.returncode, done.stderr) == (2, f"ddlrun: error: {problem}\n")


@pytest.mark.parametrize(
    ("given", "begin"),
    [("0", "http://127.0.0.1:"), ("127.0.0.2:0", "http://127.0.0.2:"), ("[::1]:0", "http://[::1]:"),
     ("0.0.0.0:0", f"http://{os.uname().nodename}:")],
)  # fmt: skip
def test_the_metrics_are_at_the_address_that_is_given(given: str, begin: str, state: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(state)}
    with started([*DDLRUN, "top", "--listen", given], env=environ, stderr=subprocess.PIPE, text=True) as ours:
        url = ours.stderr.readline().split()[-1]
        assert url.startswith(begin)
        with urllib.request.urlopen(url.replace(os.uname().nodename, "127.0.0.1")) as reply:  # noqa: S310
            assert reply.read().endswith(b"# EOF\n")
        ours.terminate()


def test_the_server_of_an_ended_run_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "ddlrun", "20261122-tokarumi")
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    argv = [*DDLRUN, "top", "--listen", "0"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    problem = "--listen: 20261122-tokarumi has ended; --openmetrics prints its metrics"
    assert (done.returncode, done.stderr) == (2, f"ddlrun: error: {problem}\n")


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    shown = {re.match(r"\w+", target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]}
    gauges = {gauge.name for gauge in GAUGES}
    assert {match[0] for match in shown if match} <= gauges
    assert len(shown) == len(dashboard["panels"])
