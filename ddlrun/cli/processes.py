"""ddlrun kill and clean: the end of runs and of their leftovers on all hosts."""

from collections.abc import Sequence
from typing import Any

import click

from ddlrun.application.run_processes import clean as clean_hosts
from ddlrun.application.run_processes import end_named_runs, raise_failures
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.launching import GRACE_HELP, SHIP_FOLDER
from ddlrun.cli.options.shared import (
    host_options,
    hosts_argument,
    note_named_file,
)
from ddlrun.cli.options.types import SECONDS, Number
from ddlrun.plan.settings import Retention, parse_retention


@click.command("kill", cls=Sections)
@argument("runs", nargs=-1, required=True)
@option(
    "Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", callback=note_named_file,
    help="Also end RUNS that were started on other computers, on these hosts; names must be whole.",
)  # fmt: skip
@host_options
@option("Termination", "--grace", type=SECONDS, default=10, show_default=True, metavar="TIME",
        help=GRACE_HELP)  # fmt: skip
def kill(runs: Sequence[str], **options: Any) -> int:  # noqa: ANN401 - click's own
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


@click.command("clean", cls=Sections)
@hosts_argument
@host_options
@option("Termination", "--dry-run", is_flag=True, help="Print what would be ended or removed, and change nothing.")
@option(
    "Termination", "--keep-runs", metavar="N|DAYSd|SIZE,...",
    help="Also remove your oldest ended runs (plans, logs) beyond a number, an age or a size, as ddlrun launch does.",
)  # fmt: skip
@option(
    "Termination", "--shipped-days", type=Number(min=0), metavar="DAYS",
    help="Also remove files of launch --ship on HOSTS that no run has used for DAYS.",
)  # fmt: skip
@option(
    "Termination", "--shipped-size", metavar="SIZE",
    help="Also remove files of launch --ship on HOSTS, the longest unused first, down to SIZE such as 20GB per host.",
)  # fmt: skip
@option(
    "Termination", "--ship-dir", metavar="DIR", show_default=SHIP_FOLDER, help="Folder of the files of launch --ship.",
)  # fmt: skip
def clean(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """End processes and remove files that earlier runs left behind.

    These are your processes on HOSTS with the name of a run whose ddlrun and keepers are gone; shared memory of MPI and
    NCCL that no process uses; and the temporary folders of mpirun and ddlrun that have ended. HOSTS is a list such as
    n[01-64]; default: this host and the hosts of runs that were started here.
    """
    kept = options["keep_runs"]
    options["keep_runs"] = Retention() if kept is None else parse_retention(kept, "`--keep-runs`")
    raise_failures(clean_hosts(hosts, options, click.echo, ConsoleReporter()), options)
    return 0
