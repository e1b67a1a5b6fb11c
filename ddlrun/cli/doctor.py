"""ddlrun doctor: the reason why a running job hangs."""

import json
import os
import secrets
import time
from typing import cast

import click

from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.value_types import SECONDS
from ddlrun.doctor.diagnosis import DiagnosisRecord, render_record
from ddlrun.errors import InputError, UnreachableError
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import PastRunState, find_run, read_past_run
from ddlrun.runs.store import state_folder, write_private

# Three observations, each with the time that a keeper has to reply (see supervise/examination.py), and a request's.
REPLY_SECONDS, INTERVALS = 65.0, 2
POLL_SECONDS = 0.05
REMEDY = "ddlrun launch --stall-timeout TIME examines a job that hangs"


@click.command("doctor", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@argument("run", required=False)
@option(
    "Run",
    "--interval",
    type=SECONDS,
    default=2,
    show_default=True,
    metavar="TIME",
    help="Time between two observations of the ranks; choose one longer than a step of the job.",
)
@option("Output", "--json", "as_json", is_flag=True, help="Print the examination as JSON.")
def command(run: str | None, interval: float, *, as_json: bool) -> None:
    """Find the reason why RUN hangs.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    All ranks are examined on their hosts, twice; a third time if they have not moved. The first line says which ranks
    wait where, and which rank they wait for; the stacks of all ranks follow. Python stacks are those of py-spy if it is
    installed on the hosts. Of a run that has ended, the last examination is printed.
    """
    folder = find_run(run, state_folder(os.environ))
    files = RunDir(folder)
    if not os.path.exists(files.plan):
        raise InputError(f"run folder {folder}: there is no plan.json in it; ddlrun runs lists the runs")
    record = _examine(files, interval) if _is_running(folder) else _read(files)
    if record is None:
        name = os.path.basename(folder)
        raise InputError(f"run {name}: it has ended, and was not examined while it ran; {REMEDY}")
    click.echo(json.dumps(record, indent=2) if as_json else render_record(record), nl=as_json)


def _is_running(folder: str) -> bool:
    past = read_past_run(folder)
    return past is not None and past.state in (PastRunState.RUNNING, PastRunState.UNKNOWN)


def _examine(files: RunDir, interval: float) -> DiagnosisRecord:
    """Request an examination, and return its record. Raises InputError or UnreachableError."""
    request = secrets.token_hex(8)
    try:
        write_private(files.examination_request, [f"{request} {interval}\n"])
    except OSError as error:
        raise InputError(f"run folder {files.path}: {error.strerror}") from error
    seconds = REPLY_SECONDS + INTERVALS * interval
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        record = _read(files)
        if record is not None and record.get("request") == request:
            return record
        time.sleep(POLL_SECONDS)
    raise UnreachableError(f"run {os.path.basename(files.path)}: its ddlrun did not reply in {seconds:g} s")


def _read(files: RunDir) -> DiagnosisRecord | None:
    """Return the record of the last examination; None if there is none."""
    try:
        with open(files.diagnosis, encoding="utf-8") as file:
            return cast("DiagnosisRecord", dict(json.load(file)))
    except (OSError, ValueError):
        return None
