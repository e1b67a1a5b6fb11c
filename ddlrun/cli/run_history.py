"""ddlrun runs: the history of runs."""

import os

import click

from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.types import COUNT
from ddlrun.cli.result import print_result
from ddlrun.runs.history import read_history
from ddlrun.runs.run_table import history_record, render_history
from ddlrun.runs.store import state_folder

MOST_RUNS = 20


@click.command("runs", cls=Sections)
@option("Output", "-n", "--number", type=COUNT, default=MOST_RUNS, show_default=True, metavar="N",
        help="List the latest N runs.")  # fmt: skip
@option("Output", "--all", "all_runs", is_flag=True, help="List all runs.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def command(number: int, *, all_runs: bool, as_json: bool) -> None:
    """List your runs, the latest first.

    These are the runs that were started here, with their states, exit codes, durations, hosts and programs. The names
    are for ddlrun logs, rerun, report and kill.
    """
    history = read_history(state_folder(os.environ), None if all_runs else number)
    columns = os.get_terminal_size(1).columns if os.isatty(1) else None
    print_result(history_record(history), render_history(history, columns), as_json=as_json)
