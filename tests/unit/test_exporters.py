"""ddlrun metrics --to: the receivers' own libraries read what arrives."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddlrun.monitor.samples import RankSample
from tests.support import needs
from tests.support.processes import wait_for
from tests.support.run_folders import make_run
from tests.support.seeded_runs import SAMPLES, read_samples

EXPORT = [sys.executable, "-m", "ddlrun", "metrics", "--to"]
LINES_PER_TIME = 3  # two ranks and a host
NAME = "20261122-tokarumi"
RSS = "ddlrun_rank_memory_bytes"
RANK_1 = [
    sample
    for sample in read_samples(str(SAMPLES / "storage.jsonl"))
    if isinstance(sample, RankSample) and sample.ranks == "1"
]
# One process for both: MLflow's import takes seconds.
EXPORT_AND_READ = """
import json, sys
from ddlrun.cli import run_command
if code := run_command(["metrics", "--to", "mlflow"]):
    sys.exit(code)
from mlflow import MlflowClient
client = MlflowClient()
(run,) = client.search_runs(["0"])
history = client.get_metric_history(run.info.run_id, sys.argv[1])
print(json.dumps([run.info.run_name, run.info.status, [(metric.timestamp, metric.value) for metric in history]]))
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Provide a state folder with a run that has samples, and has ended."""
    run = make_run(tmp_path / "ddlrun", NAME)
    (run / "metrics.jsonl").write_text((SAMPLES / "storage.jsonl").read_text())
    return tmp_path


def export(state: Path, to: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environ = environment(state, **variables)
    return subprocess.run([*EXPORT, to], env=environ, cwd=state, capture_output=True, text=True, check=False)


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
        with subprocess.Popen([*EXPORT, "otlp", str(run)], env=environ, stderr=subprocess.PIPE, text=True) as job:
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
        done = export(state, "otlp", OTEL_EXPORTER_OTLP_ENDPOINT=address)
    problem = "the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, f"ddlrun: error: {problem}")


@pytest.mark.extra
def test_tensorboard_reads_its_files(state: Path) -> None:
    needs.package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415 - may not be installed
        EventAccumulator,
    )

    done = export(state, "tensorboard")
    assert done.returncode == 0, done.stderr
    events: Any = EventAccumulator(str(state / "runs" / NAME), size_guidance={"tensors": 0})
    events.Reload()
    tensors = events.Tensors(f"{RSS}/1/{RANK_1[0].host}")
    values = [(event.wall_time, event.tensor_proto.float_val[0]) for event in tensors]
    assert values == [pytest.approx((sample.time, sample.rss)) for sample in RANK_1]


@pytest.mark.extra
def test_mlflow_reads_its_metrics(state: Path) -> None:
    needs.package("mlflow", "mlflow-skinny")
    store = {"MLFLOW_TRACKING_URI": f"file://{state}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    argv = [sys.executable, "-c", EXPORT_AND_READ, f"{RSS}/1/{RANK_1[0].host}"]
    environ = environment(state, **store)
    done = subprocess.run(argv, env=environ, cwd=state, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, status, values = json.loads(done.stdout)
    assert (name, status) == (NAME, "FINISHED")
    assert values == [[round(sample.time * 1000), sample.rss] for sample in RANK_1]


def test_a_missing_package_is_an_error(state: Path) -> None:
    (state / "tensorboard.py").write_text("raise ImportError('no tensorboard')\n")
    done = export(state, "tensorboard", PYTHONPATH=f"{state}:{os.getcwd()}")
    problem = f"--to tensorboard: no tensorboard; {sys.executable} -m pip install tensorboard"
    assert (done.returncode, done.stderr) == (2, f"ddlrun: error: {problem}\n")
