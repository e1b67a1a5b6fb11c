"""The samples of a run for other programs: as a web page, for Prometheus, and for OpenTelemetry."""

import sys
from contextlib import closing

import click

from ddlrun.application.page import open_page
from ddlrun.errors import InputError
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader
from ddlrun.metrics.openmetrics import render_openmetrics
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import may_run, run_name

# What --otlp needs.
PACKAGE = "opentelemetry-exporter-otlp-proto-http"


def serve_page(folder: str, port: int) -> None:
    """Serve the web page of a run until Ctrl-C. Raises InputError where the port cannot be used."""
    server = open_page(port, folder, "--web")
    click.echo(f"page of {run_name(folder)}: {server.url}", err=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def serve_metrics(folder: str, address: str, port: int) -> None:
    """Serve the metrics of a run until it ends. Raises InputError if it has, or the port cannot be used."""
    from ddlrun.metrics.openmetrics_server import MetricsServer  # noqa: PLC0415 - 40 ms, for --listen alone

    name, history = run_name(folder), History()
    if not may_run(folder):
        raise InputError(f"--listen: {name} has ended; --openmetrics prints its metrics")
    with closing(MetricsReader(RunDir(folder).metrics)) as reader:

        def render() -> str:
            history.add(reader.read())
            return render_openmetrics(history, name)

        try:
            server = MetricsServer(port, render, address)
        except OSError as error:
            raise InputError(f"--listen {address}:{port}: {error.strerror}; choose another address or port") from error
        click.echo(f"metrics of {name}: {server.url}", err=True)
        with server:
            server.serve_while(lambda: may_run(folder))


def export_metrics(folder: str) -> None:
    """Export the samples of a run to OpenTelemetry, those of the past first, until it ends."""
    try:
        from ddlrun.metrics.otlp import OtlpExporter, follow_values  # noqa: PLC0415 - 90 ms, and it may be missing
    except ImportError as error:
        raise InputError(f"--otlp: {error}; {sys.executable} -m pip install {PACKAGE}") from error
    name, count = run_name(folder), 0
    with closing(OtlpExporter()) as exporter:
        for moment, values in follow_values(RunDir(folder).metrics, name, lambda: may_run(folder)):
            exporter.export(moment, values)
            count += 1
    click.echo(f"metrics of {name}: exported {count} samples to otlp", err=True)
