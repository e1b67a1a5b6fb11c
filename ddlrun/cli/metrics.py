"""ddlrun metrics: the samples of a run for Prometheus."""

from contextlib import closing

import click

from ddlrun.cli.named_run import find_run_folder, may_run, run_name
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.value_types import WholeNumber
from ddlrun.errors import InputError
from ddlrun.monitor.history import History
from ddlrun.monitor.metrics_file import MetricsReader
from ddlrun.monitor.openmetrics import render_openmetrics
from ddlrun.plan.run_dir import RunDir

MOST_PORT = 65535


@click.command("metrics", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@argument("run", required=False)
@option(
    "Output", "--listen", type=WholeNumber(0, MOST_PORT), metavar="PORT",
    help="Serve them at http://127.0.0.1:PORT/metrics until the run ends; 0: at any free port.",
)  # fmt: skip
def command(run: str | None, listen: int | None) -> None:
    """Print what the ranks of RUN use, for Prometheus.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The format is OpenMetrics. Only programs on this computer reach the server, and they need no password.
    """
    folder = find_run_folder(run)
    name, history = run_name(folder), History()
    with closing(MetricsReader(RunDir(folder).metrics)) as reader:

        def render() -> str:
            history.add(reader.read())
            return render_openmetrics(history, name)

        if listen is None:
            click.echo(render(), nl=False)
            return
        from ddlrun.monitor.server import MetricsServer  # noqa: PLC0415 - 30 ms, for --listen alone

        try:
            server = MetricsServer(listen, render)
        except OSError as error:
            raise InputError(f"--listen {listen}: {error.strerror}; choose another port") from error
        click.echo(f"metrics of {name}: {server.url}", err=True)
        with server:
            server.serve_while(lambda: may_run(folder))
