"""Examinations of a run: ddlrun doctor requests them, and the ddlrun that supervises the run makes them.

Of a job that has left dumps, it makes the examination itself.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

from ddlrun.errors import InputError, UnreachableError
from ddlrun.hangs.dumps import Dump, examine_dumps, find_rank, parse_dump_file
from ddlrun.hangs.examination import record_examination
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import may_run, read_past_run
from ddlrun.runs.store import write_private

# Three snapshots, each with the time that a keeper has to reply (see hangs/examiner.py), and a request's.
REPLY_SECONDS, INTERVALS = 65.0, 2
POLL_SECONDS = 0.05
REMEDY = "ddlrun launch --stall-timeout TIME examines a job that hangs"


def request_examination(
    folder: str, interval: float, note: Callable[[str], None], *, required: bool = True
) -> dict[str, Any]:
    """Return a new examination of a run; of one that has ended, the last. Raises InputError and UnreachableError.

    Args:
        folder: The run folder.
        interval: The seconds between two snapshots.
        note: The function that prints that the run has ended.
        required: Raise InputError also if the run has ended, and was not examined.
    """
    files = RunDir(folder)
    past = read_past_run(folder)
    record = _request(files, interval) if past is not None and past.state.may_run else _read(files)
    if record is not None and not may_run(folder):
        at = time.strftime("%m-%d %H:%M", time.localtime(record["time"]))
        note(f"run {os.path.basename(folder)} has ended; this is its examination of {at}")
    if record is None and not required:
        return record_examination(examine_dumps({}), "", time.time())
    if record is None:
        name = os.path.basename(folder)
        raise InputError(f"run {name}: it has ended, and was not examined while it ran; {REMEDY}")
    return record


def examine_folder(folder: str, *, required: bool = True) -> dict[str, Any]:
    """Return the examination of a job that has left dumps in a folder. Raises InputError.

    Args:
        folder: The folder; its files and those below it are read.
        required: Raise InputError also if there is no dump.
    """
    dumps: dict[int, list[Dump]] = {}
    seen: dict[str, str] = {}
    problems = []
    for path in list_files(folder):
        name = os.path.basename(path)
        rank = find_rank(name)
        try:
            with open(path, "rb") as file:
                dump = None if rank is None else parse_dump_file(file.read())
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
            continue
        if rank is not None and dump is not None:
            problems += [f"{path}: {seen[name]} has the same rank"] if name in seen else []
            seen[name] = path
            dumps.setdefault(rank, []).append(dump)
    if problems:
        raise InputError("\n".join(problems))
    if not dumps and required:
        raise InputError(f"{folder}: no file is a dump of a flight recorder or py-spy with a rank in its name")
    try:
        return record_examination(examine_dumps(dumps), "", time.time())
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from error


def list_files(folder: str) -> list[str]:
    """Return the paths of all files in a folder and those below it."""
    return sorted(os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)


def _request(files: RunDir, interval: float) -> dict[str, Any] | None:
    """Request an examination, and return its record; the last one if the run ends before that.

    Raises InputError or UnreachableError.
    """
    request = secrets.token_hex(8)
    try:
        write_private(files.examination_request, [f"{request} {interval}\n"])
    except OSError as error:
        raise InputError(f"run folder {files.path}: {error.strerror}") from error
    seconds = REPLY_SECONDS + INTERVALS * interval
    end = time.monotonic() + seconds
    while may_run(files.path):
        record = _read(files)
        if record is not None and record.get("request") == request:
            return record
        if time.monotonic() > end:
            raise UnreachableError(f"run {os.path.basename(files.path)}: its ddlrun did not reply in {seconds:g} s")
        time.sleep(POLL_SECONDS)
    return _read(files)


def _read(files: RunDir) -> dict[str, Any] | None:
    """Return the record of the last examination; None if there is none."""
    try:
        with open(files.examination, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None
