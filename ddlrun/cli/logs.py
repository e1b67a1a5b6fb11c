"""ddlrun logs: the output of a run."""

import os
import sys

import click

from ddlrun.application.options.supervision import parse_ranks
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.types import WholeNumber
from ddlrun.runs.history import find_run_folder
from ddlrun.runs.log_files import read_logs
from ddlrun.runs.store import state_folder


@click.command("logs", cls=Sections)
@argument("run", required=False)
@option("Output", "-f", "--follow", is_flag=True, help="Go on printing until the run and its restarts end.")
@option(
    "Output", "--rank", "--ranks", "ranks", metavar="LIST", help="Print the output of these ranks only, such as 0,3-5."
)
@option(
    "Output", "-n", "--lines", type=WholeNumber(min=0), metavar="N", help="Print only the last N lines of each log."
)
def command(run: str | None, ranks: str | None, lines: int | None, *, follow: bool) -> None:
    """Print the output of RUN.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The ranks' standard output goes to standard output, and their standard error to standard error. With --rank, both
    streams of each rank go to standard output, in the order of their arrival.
    """
    folder = find_run_folder(run, state_folder(os.environ))
    chosen = None if ranks is None else parse_ranks(ranks, "--rank")
    streams = (sys.stdout, sys.stderr)
    for number, block in read_logs(folder, chosen, lines, follow=follow):
        stream = streams[number]
        if stream is not None:  # it is closed
            stream.buffer.write(block)
            stream.flush()
