"""ddlrun runs: running and ended runs, and their processes on hosts."""

import os
from typing import Any

import click

from ddlrun.application.run_processes import list_processes, raise_failures
from ddlrun.cli.options import SectionsOfRuns, option
from ddlrun.cli.options.shared import host_options, note_named_file
from ddlrun.cli.options.types import COUNT
from ddlrun.cli.result import print_result
from ddlrun.runs.registry import read_runs
from ddlrun.runs.run_list import list_runs
from ddlrun.runs.run_table import render_runs, runs_record
from ddlrun.runs.store import state_folder

MOST_RUNS = 20


@click.command("runs", cls=SectionsOfRuns)
@option("Hosts", "--processes", is_flag=True,
        help="Also search for processes of runs, on this host and the hosts of running ones.")  # fmt: skip
@option(
    "Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", callback=note_named_file,
    help="Search for processes on these hosts, also those of runs that were started on other computers.",
)  # fmt: skip
@host_options
@option("Output", "-n", "--number", type=COUNT, default=MOST_RUNS, show_default=True, metavar="N",
        help="List the latest N runs.")  # fmt: skip
@option("Output", "--all", "all_runs", is_flag=True, help="List all runs.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own
    """List your runs, the running ones first.

    These are the runs that were started here, with their states, exit codes, durations, hosts and programs. The names
    are for ddlrun logs, rerun, report and kill.

    With --processes or -H, runs with processes come first, also those that have ended and left some behind.
    """
    state, most = state_folder(os.environ), None if options["all_runs"] else options["number"]
    searched = options["processes"] or options["hosts"] or options["hostfile"]
    processes, failed = list_processes(options["hosts"], read_runs(state), options) if searched else ({}, {})
    runs = list_runs(state, most, processes)
    columns = os.get_terminal_size(1).columns if os.isatty(1) else None
    record = runs_record(runs, processes if searched else None)
    print_result(record, render_runs(runs, columns), as_json=options["as_json"])
    raise_failures(failed, options)
