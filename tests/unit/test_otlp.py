"""ddlrun top --otlp: OpenTelemetry's own library reads what arrives."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ddlrun.metrics.samples import RankSample
from tests.support import needs
from tests.support.processes import wait_for
from tests.support.run_folders import make_run
from tests.support.seeded_runs import SAMPLES, read_samples

EXPORT = [sys.executable, "-m", "ddlrun", "top", "--otlp"]
LINES_PER_TIME = 3  # two ranks and a host
NAME = "20261122-tokarumi"
RSS = "ddlrun_rank_memory_bytes"
RANK_1 = [
    sample
    for sample in read_samples(str(SAMPLES / "storage.jsonl"))
    if isinstance(sample, RankSample) and sample.ranks == "1"
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Provide a state folder with a run that has samples, and has ended."""
    run = make_run(tmp_path / "ddlrun", NAME)
    (run / "metrics.jsonl").write_text((SAMPLES / "storage.jsonl").read_text())
    return tmp_path


def export(state: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environ = environment(state, **variables)
    return subprocess.run(EXPORT, env=environ, cwd=state, capture_output=True, text=True, check=False)


def environment(state: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(state), "NO_PROXY": "127.0.0.1", **variables}


@contextmanager
def receiver(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """Provide the address of a server for OTLP, and the bodies that it receives."""
    bodies = list[bytes]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status if self.path == "/v1/metrics" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_otlp_has_the_samples_of_the_past_and_new_ones(state: Path) -> None:
    needs.package("opentelemetry", "opentelemetry-exporter-otlp-proto-http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: PLC0415 - may not be installed
        ExportMetricsServiceRequest,
    )

    run = make_run(state, "running", exit_code=None, pid=os.getpid())
    path = run / "metrics.jsonl"
    lines = (SAMPLES / "storage.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:LINES_PER_TIME]))
    (run / "whole").write_text("".join(lines))
    with receiver(200) as (address, bodies):
        environ = environment(state, OTEL_EXPORTER_OTLP_ENDPOINT=address)
        with subprocess.Popen([*EXPORT, str(run)], env=environ, stderr=subprocess.PIPE, text=True) as job:
            wait_for(lambda: bodies or job.poll() is not None)
            (run / "whole").replace(path)
            wait_for(lambda: len(bodies) == len(RANK_1) or job.poll() is not None)
            (run / "outcome.json").write_text('{"exit_code": 0, "seconds": 9.0, "requested": false}')
            errors = job.communicate()[1]
    assert job.returncode == 0, errors
    seen = list[tuple[float, float]]()
    for body in bodies:
        (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        (metric,) = (metric for metric in resource.scope_metrics[0].metrics if metric.name == RSS)
        assert metric.unit == "By"
        for point in metric.gauge.data_points:
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            assert labels["run"] == "running"
            seen += [(point.time_unix_nano / 1e9, point.as_int)] if labels["rank"] == "1" else []
    assert [value for _, value in seen] == [sample.rss for sample in RANK_1]
    assert [time for time, _ in seen] == pytest.approx([sample.time for sample in RANK_1])


def test_an_endpoint_that_refuses_metrics_is_an_error(state: Path) -> None:
    needs.package("opentelemetry", "opentelemetry-exporter-otlp-proto-http")
    with receiver(400) as (address, _):
        done = export(state, OTEL_EXPORTER_OTLP_ENDPOINT=address)
    problem = "the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, f"ddlrun: error: {problem}")


def test_a_missing_package_is_an_error(state: Path) -> None:
    (state / "opentelemetry.py").write_text("raise ImportError('no opentelemetry')\n")
    done = export(state, PYTHONPATH=f"{state}:{os.getcwd()}")
    package = "opentelemetry-exporter-otlp-proto-http"
    problem = f"--otlp: no opentelemetry; {sys.executable} -m pip install {package}"
    assert (done.returncode, done.stderr) == (2, f"ddlrun: error: {problem}\n")
