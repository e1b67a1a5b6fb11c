"""ddlrun doctor: the reason why a job hangs."""

import os

import click

from ddlrun.application.examination import examine_folder, request_examination
from ddlrun.application.nccl_networks import examine_networks, record_networks, render_networks
from ddlrun.cli.console import print_note
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.types import SECONDS
from ddlrun.cli.result import print_result
from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.hangs.examination import render_record
from ddlrun.runs.history import find_run_folder
from ddlrun.runs.store import state_folder


@click.command("doctor", cls=Sections)
@argument("run", required=False)
@option(
    "Run", "--interval", type=SECONDS, default=2, show_default=True, metavar="TIME",
    help="Time between two snapshots of the ranks; choose one longer than a step of the job.",
)  # fmt: skip
@option(
    "Run", "--dumps", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
    help="Examine the dumps in FOLDER instead of a run.",
)  # fmt: skip
@option(
    "Run", "--expect-transport", "expected", metavar="NAME",
    help="Fail unless NCCL uses this network on all hosts, such as IB.",
)  # fmt: skip
@option("Output", "--json", "as_json", is_flag=True, help="Print the examination as JSON.")
def command(run: str | None, interval: float, dumps: str | None, expected: str | None, *, as_json: bool) -> int:
    """Find out why RUN hangs.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    Takes two snapshots of all ranks, and a third if none has moved. The first line says which ranks wait where, and
    which rank they wait for; the stacks of all ranks follow, from py-spy if it is installed on the hosts. For a run
    that has ended, the last examination is printed.

    Dumps are files with the rank in their names: those of PyTorch's flight recorder (pickle or JSON), and the output
    of `py-spy dump`. NCCL's logs, of the run or in FOLDER, show the network of each host.
    """
    if dumps is not None and run is not None:
        raise click.UsageError("--dumps examines a folder, not a run: give one of them")
    folder = dumps or find_run_folder(run, state_folder(os.environ))
    networks = examine_networks(folder, expected, of_run=dumps is None)
    required = not networks.hosts
    examined = request_examination(folder, interval, print_note, required=required) if dumps is None else None
    record = examined or examine_folder(folder, required=required)
    parts = [render_record(record)] if record["ranks"] else []
    text = "\n".join([*parts, *([render_networks(networks)] if networks.hosts else [])])
    print_result({**record, "nccl": record_networks(networks)}, text, as_json=as_json)
    return 0 if networks.is_expected else EXIT_PREFLIGHT
