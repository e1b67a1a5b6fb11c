"""Files of a run folder that its page shows."""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TypedDict

from ddlrun.errors import InputError
from ddlrun.plan.run_dir import rank_log
from ddlrun.runs.events import EventRecord
from ddlrun.runs.log_files import count_ranks

# The part of a log that is shown.
LOG_BYTES = 1 << 16
MOST_EVENTS = 20
RESTART = r"/restart-([0-9]+)$"


class RunEvent(TypedDict):
    """An event that the charts mark."""

    time: float
    """Seconds since the epoch."""
    text: str


def read_verdict(path: str) -> str:
    """Return the verdict of the last examination; empty where there was none."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
        return str(json.load(file)["sentence"])
    return ""


def read_events(path: str) -> list[RunEvent]:
    """Return the last events of a run that a chart marks; none where there is no file."""
    events: list[RunEvent] = []
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        for line in file:
            with suppress(ValueError, KeyError, TypeError):  # the first line may have lost its beginning
                record = json.loads(line)
                text = describe_event(record)
                if text:
                    events.append({"time": float(record["time"]), "text": text})
    return events[-MOST_EVENTS:]


def describe_event(record: EventRecord) -> str:
    """Return the text of an event; an empty one where charts have no mark for it."""
    attempt = re.search(RESTART, record["run_dir"])
    if record["event"] == "start" and attempt:
        return f"restart {attempt[1]}"
    if record["event"] == "stall" and record["verdict"] is not None:
        return f"stall: {record['verdict']['text']}"
    if record["event"] != "end" or record["state"] != "failed":
        return ""
    if record["lost_hosts"]:
        return f"lost {', '.join(record['lost_hosts'])}"
    if record["failed_rank"] is not None:
        return f"rank {record['failed_rank']} failed, exit code {record['exit_code']}"
    return f"failed: {record['reason'] or 'exit code ' + str(record['exit_code'])}"


def read_logs(folder: str, ranks: Iterable[int], most: int = LOG_BYTES) -> dict[int, str]:
    """Return up to `most` bytes of the end of the log of each rank, in whole lines if possible; or an empty text."""
    with suppress(InputError):
        count = count_ranks(folder)
        return {rank: _read_end(rank_log(folder, rank, count), most) for rank in ranks}
    return dict.fromkeys(ranks, "")


def _read_end(path: str, most: int) -> str:
    with suppress(OSError):
        with open(path, "rb") as log:
            start = max(0, log.seek(0, os.SEEK_END) - most)
            log.seek(start)
            text = log.read(most)
        if start:
            text = text.partition(b"\n")[2] or text
        return text.decode(errors="replace")
    return ""
