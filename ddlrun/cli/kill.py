"""ddlrun kill: the end of runs on all hosts."""

from collections.abc import Sequence
from typing import Any

import click

from ddlrun.application.run_processes import end_named_runs, raise_failures
from ddlrun.cli.options import SectionsOfRuns, argument, option
from ddlrun.cli.options.launching import GRACE_HELP
from ddlrun.cli.options.shared import host_options, note_named_file
from ddlrun.cli.options.types import SECONDS


@click.command("kill", cls=SectionsOfRuns)
@argument("runs", nargs=-1, required=True)
@option(
    "Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", callback=note_named_file,
    help="Also end RUNS that were started on other computers, on these hosts; names must be whole.",
)  # fmt: skip
@host_options
@option("Termination", "--grace", type=SECONDS, default=10, show_default=True, metavar="TIME",
        help=GRACE_HELP)  # fmt: skip
def command(runs: Sequence[str], **options: Any) -> int:  # noqa: ANN401 - click's own
    """End RUNS and their processes on all hosts.

    RUNS are names from ddlrun runs or their beginnings, or last. The ddlrun of a run is ended first, then the processes
    that remain on its hosts.
    """
    ended = end_named_runs(runs, options)
    if ended.names:
        counts = ", ".join(f"{host} {count}" for host, count in ended.leftovers.items() if count)
        click.echo(f"ended: {', '.join(ended.names)}{counts and f'; leftover processes: {counts}'}")
    raise_failures(ended.failed, options)
    return 0
