"""ddlrun clean: the end of what runs have left on all hosts."""

from typing import Any

import click

from ddlrun.application.run_processes import clean, raise_failures
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.launching import SHIP_FOLDER
from ddlrun.cli.options.shared import host_options, hosts_argument
from ddlrun.cli.options.types import Number
from ddlrun.plan.settings import parse_retention


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
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """End processes and remove files that earlier runs left behind.

    These are your processes on HOSTS with the name of a run whose ddlrun and keepers are gone; shared memory of MPI and
    NCCL that no process uses; and the temporary folders of mpirun and ddlrun that have ended. HOSTS is a list such as
    n[01-64]; default: this host and the hosts of runs that were started here.
    """
    options["keep_runs"] = parse_retention(options["keep_runs"], "`--keep-runs`")
    raise_failures(clean(hosts, options, click.echo, ConsoleReporter()), options)
    return 0
