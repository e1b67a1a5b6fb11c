"""ddlrun metrics: the samples of a run for Prometheus and other programs."""

import os
import sys
from contextlib import closing

import click

from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.types import PORT
from ddlrun.errors import InputError
from ddlrun.monitor.history import History
from ddlrun.monitor.metrics_file import MetricsReader
from ddlrun.monitor.openmetrics import render_openmetrics
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import find_run_folder, may_run, run_name
from ddlrun.runs.store import state_folder

# What --to otlp needs.
PACKAGE = "opentelemetry-exporter-otlp-proto-http"


@click.command("metrics", cls=Sections)
@argument("run", required=False)
@option(
    "Output", "--listen", type=PORT, metavar="PORT",
    help="Serve the metrics at http://127.0.0.1:PORT/metrics until the run ends; 0: any free port.",
)  # fmt: skip
@option(
    "Output", "--to", type=click.Choice(["otlp"]),
    help="Export past and new metrics until the run ends; not with --listen.",
)  # fmt: skip
def command(run: str | None, listen: int | None, to: str | None) -> None:
    """Print what the ranks of RUN use, for Prometheus, or export it to OpenTelemetry.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The format is OpenMetrics. Only programs on this computer reach the server, and they need no password.

    --to otlp sends them to the collector of OpenTelemetry that OTEL_EXPORTER_OTLP_ENDPOINT names.
    """
    if listen is not None and to is not None:
        raise InputError("--listen and --to exclude each other; start ddlrun metrics once for each")
    folder = find_run_folder(run, state_folder(os.environ))
    name, history = run_name(folder), History()
    if to is not None:
        _export(folder, name)
        return
    with closing(MetricsReader(RunDir(folder).metrics)) as reader:

        def render() -> str:
            history.add(reader.read())
            return render_openmetrics(history, name)

        if listen is None:
            click.echo(render(), nl=False)
            return
        if not may_run(folder):
            raise InputError(f"--listen: {name} has ended; leave --listen out to print its metrics")
        from ddlrun.monitor.server import MetricsServer  # noqa: PLC0415 - 40 ms, for --listen alone

        try:
            server = MetricsServer(listen, render)
        except OSError as error:
            raise InputError(f"--listen {listen}: {error.strerror}; choose another port") from error
        click.echo(f"metrics of {name}: {server.url}", err=True)
        with server:
            server.serve_while(lambda: may_run(folder))


def _export(folder: str, name: str) -> None:
    """Export the samples of a run, those of the past first, until it ends."""
    try:
        from ddlrun.monitor.otlp import OtlpExporter, follow_values  # noqa: PLC0415 - 90 ms, and it may be missing
    except ImportError as error:
        raise InputError(f"--to otlp: {error}; {sys.executable} -m pip install {PACKAGE}") from error
    count = 0
    with closing(OtlpExporter()) as exporter:
        for moment, values in follow_values(RunDir(folder).metrics, name, lambda: may_run(folder)):
            exporter.export(moment, values)
            count += 1
    click.echo(f"metrics of {name}: exported {count} samples to otlp", err=True)
