"""Examinations of a run: ddlrun doctor requests them, and the ddlrun that supervises the run makes them."""

import json
import os
import secrets
import time
from typing import Any

from ddlrun.errors import InputError, UnreachableError
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import read_past_run
from ddlrun.runs.store import write_private

# Three snapshots, each with the time that a keeper has to reply (see hangs/examiner.py), and a request's.
REPLY_SECONDS, INTERVALS = 65.0, 2
POLL_SECONDS = 0.05
REMEDY = "ddlrun launch --stall-timeout TIME examines a job that hangs"


def request_examination(folder: str, interval: float) -> dict[str, Any]:
    """Return a new examination of a run; of one that has ended, the last. Raises InputError and UnreachableError."""
    files = RunDir(folder)
    past = read_past_run(folder)
    record = _request(files, interval) if past is not None and past.state.may_run else _read(files)
    if record is None:
        name = os.path.basename(folder)
        raise InputError(f"run {name}: it has ended, and was not examined while it ran; {REMEDY}")
    return record


def _request(files: RunDir, interval: float) -> dict[str, Any]:
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


def _read(files: RunDir) -> dict[str, Any] | None:
    """Return the record of the last examination; None if there is none."""
    try:
        with open(files.examination, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None
