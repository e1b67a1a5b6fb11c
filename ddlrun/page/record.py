"""Record of a run: what the files of its folder say besides samples."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.state_folders import find_path

Fields = Mapping[str, Any]
# The keys that a page needs of the events of ddl.jsonl.
ITERATIONS = "time first last mode seconds compute reduce jitter dimensions"
FINDING = "time rank host score"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The records of a run; a file that does not exist or cannot be read is an empty record."""

    folder: str
    plan: Fields = field(default_factory=dict)
    outcome: Fields = field(default_factory=dict)
    check: Fields = field(default_factory=dict)
    binding: Fields = field(default_factory=dict)
    dumps: tuple[Fields, ...] = ()
    """The reports of -dump_iter in order."""
    findings: tuple[Fields, ...] = ()
    """The findings of -rebind_iter in order."""
    environment: tuple[str, ...] = ()
    """The names of the variables that are passed on."""
    failure: str = ""
    """The report of a failed run, else empty."""
    gaps: tuple[str, ...] = ()
    """The files that cannot be read, in words."""


def record_files(folder: str) -> tuple[str, ...]:
    """Return the paths of the files of which a record consists."""
    files = RunDir(folder)
    outcome = find_path(files.outcome)
    return (files.plan, outcome, files.check, files.binding, files.ddl, files.environment, files.report)


def stat_record(folder: str) -> tuple[tuple[int, int] | None, ...]:
    """Return values that differ after a change of one of the files of a record."""
    return tuple(map(_stat, record_files(folder)))


def _stat(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size
    return None


def read_record(folder: str) -> RunRecord:
    """Return the records in a run folder."""
    texts = {os.path.basename(path): _read(path) for path in record_files(folder)}
    gaps: list[str] = []
    plan, outcome, check, binding = (
        _parse(name, texts[name], gaps) for name in ("plan.json", "outcome.json", "check.json", "binding.json")
    )
    events = list(_parse_events(texts["ddl.jsonl"], gaps))
    return RunRecord(
        folder=folder,
        plan=plan,
        outcome=outcome,
        check=check,
        binding=binding,
        dumps=tuple(event for event in events if event["event"] == "iterations"),
        findings=tuple(event for event in events if event["event"] != "iterations"),
        environment=tuple(texts["environment"].split()),
        failure=texts["report.txt"].replace("ddlrun: ", ""),
        gaps=tuple(gaps),
    )


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def _parse(name: str, text: str, gaps: list[str]) -> Fields:
    """Return the JSON object of a file; empty, with a gap, where a full disk or a kill cut the file short."""
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError):
        gaps.append(f"{name} was not written to its end")
        return {}


def _parse_events(text: str, gaps: list[str]) -> Iterator[Fields]:
    lines = text.splitlines()
    unread = 0
    for line in lines:
        try:
            event = dict(json.loads(line))
            keys = ITERATIONS if event["event"] == "iterations" else FINDING
            missing = not event.keys() >= set(keys.split())
        except (ValueError, KeyError, TypeError):
            missing = True
        if missing:
            unread += 1
        else:
            yield event
    if unread:
        gaps.append(f"{unread} of {len(lines)} lines of ddl.jsonl cannot be read")
