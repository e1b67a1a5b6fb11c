"""ddlrun top: the use of resources by the ranks of a run, on a terminal, as a web page or for other programs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Any

import click

from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.types import PORT, AddressType
from ddlrun.cli.result import print_result
from ddlrun.cli.screen import render_samples, show_samples
from ddlrun.cli.serving import export_metrics, serve_metrics, serve_page
from ddlrun.errors import InputError
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader
from ddlrun.metrics.openmetrics import render_openmetrics
from ddlrun.metrics.top_table import COLUMNS, top_record
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import find_run_folder, run_name
from ddlrun.runs.store import state_folder

ANY_PORT = 0


class Top(Sections):
    """A command with --web, whose value may be left out also before RUN."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a word after --web is its port only if it is a number."""
        return super().parse_args(ctx, [*_name_ports(args)])


def _name_ports(args: list[str]) -> Iterator[str]:
    """Yield words, with --web=0 for a --web that is not followed by a port."""
    for word, following in pairwise([*args, ""]):
        yield word if word != "--web" or following.isdigit() else f"--web={ANY_PORT}"


@click.command("top", cls=Top)
@argument("run", required=False)
@option("Output", "--once", is_flag=True, help="Print the latest samples, and exit; so it is without a terminal.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the latest samples as JSON, and exit.")
@option("Output", "--openmetrics", is_flag=True,
        help="Print the latest samples in the format of Prometheus, and exit.")  # fmt: skip
@option(
    "Other programs", "--web", type=PORT, metavar="[PORT]", is_flag=False, flag_value=ANY_PORT,
    help="Serve a web page at this port of this computer until Ctrl-C; default: any free port.",
)  # fmt: skip
@option(
    "Other programs", "--listen", type=AddressType(), metavar="[ADDRESS:]PORT",
    help="Serve the samples to Prometheus at http://ADDRESS:PORT/metrics until the run ends; default: 127.0.0.1, which "
    "only this computer reaches. PORT 0: any free port.",
)  # fmt: skip
@option(
    "Other programs", "--otlp", is_flag=True,
    help="Export past and new samples to the collector of OpenTelemetry that OTEL_EXPORTER_OTLP_ENDPOINT names, until "
    "the run ends.",
)  # fmt: skip
def command(run: str | None, **options: Any) -> None:  # noqa: ANN401 - click's own
    """Show what the ranks of RUN use, and what limits them.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The ranks in trouble come first. q or Ctrl-C ends ddlrun top, and so does the end of the run.

    Only browsers on this computer reach the page of --web, with the printed address, which has a password. The page
    shows an ended run, too. Programs need no password for --listen.
    """
    wanted = {
        "--web": options["web"] is not None, "--listen": options["listen"] is not None, "--otlp": options["otlp"],
        "--openmetrics": options["openmetrics"], "--json": options["as_json"],
        "--once": options["once"] and not options["as_json"],
    }  # fmt: skip
    ways = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(ways) > 1:
        raise InputError(f"{ways[0]} and {ways[1]} exclude each other; start ddlrun top once for each")
    folder = find_run_folder(run, state_folder(os.environ))
    if options["web"] is not None:
        serve_page(folder, options["web"])
    elif options["listen"] is not None:
        serve_metrics(folder, *options["listen"])
    elif options["otlp"]:
        export_metrics(folder)
    else:
        _print(folder, options, live=os.isatty(1) and not ways)


def _print(folder: str, options: Mapping[str, Any], *, live: bool) -> None:
    """Print the latest samples; on a terminal, show them first until the run or the user ends this."""
    history = History()
    with closing(MetricsReader(RunDir(folder).metrics)) as reader:
        history.add(reader.read())
        if live:
            show_samples(folder, history, reader)
    if options["openmetrics"]:
        click.echo(render_openmetrics(history, run_name(folder)), nl=False)
        return
    columns = os.get_terminal_size(1).columns if os.isatty(1) else COLUMNS
    text = "".join(f"{line}\n" for line in render_samples(folder, history, columns=columns or COLUMNS))
    print_result(top_record(folder, history), text, as_json=options["as_json"])
