"""Recordings of a shell at a pseudo terminal, as asciicast files of version 2."""

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddlrun.keeper.program_streams import set_size

COLUMNS, ROWS = 100, 28
PATIENCE_SECONDS = 300.0
KEY_SECONDS = 0.05
# A viewer reads what was printed before the next keys.
READING_SECONDS = 1.5
# Longer pauses are cut to this.
LONGEST_PAUSE = 2.0


class Step(NamedTuple):
    """Keys to type, and a pattern of the output for which to wait afterwards."""

    keys: str
    until: str


class Event(NamedTuple):
    """Output of a terminal, and its time in seconds after the start."""

    seconds: float
    text: str


def record(steps: Sequence[Step], environ: Mapping[str, str], folder: Path) -> list[Event]:
    """Type the keys of each step at a shell; return what the terminal showed. Raises TimeoutError."""
    user, terminal = pty.openpty()
    set_size(user, ROWS, COLUMNS)
    argv = ["setsid", "--ctty", "bash", "--norc", "--noediting"]
    shell = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=environ, cwd=folder)
    os.close(terminal)
    started = time.monotonic()
    events: list[Event] = []
    try:
        for step in steps:
            for key in step.keys.removesuffix("\n"):
                os.write(user, key.encode())
                events += _read_for(user, started, KEY_SECONDS)
            os.write(user, step.keys[-1:].encode())
            events += _read_until(user, started, step.until)
            events += _read_for(user, started, READING_SECONDS)
    finally:
        shell.kill()
        shell.wait()
        os.close(user)
    return events


def _read_for(fd: int, started: float, seconds: float) -> Iterator[Event]:
    """Yield the output of a time span."""
    end = time.monotonic() + seconds
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        yield Event(time.monotonic() - started, os.read(fd, 1 << 16).decode(errors="replace"))


def _read_until(fd: int, started: float, pattern: str) -> Iterator[Event]:
    """Yield the output until it has a match. Raises TimeoutError with the output."""
    seen, end = "", time.monotonic() + PATIENCE_SECONDS
    while re.search(pattern, seen) is None:
        if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError(f"no {pattern!r} in {seen!r}")
        event = Event(time.monotonic() - started, os.read(fd, 1 << 16).decode(errors="replace"))
        seen += event.text
        yield event


def shorten_pauses(events: Sequence[Event]) -> list[Event]:
    """Return events with no pause longer than LONGEST_PAUSE."""
    shortened, before, now = [], 0.0, 0.0
    for event in events:
        now += min(event.seconds - before, LONGEST_PAUSE)
        before = event.seconds
        shortened.append(Event(now, event.text))
    return shortened


def render_cast(events: Sequence[Event], title: str) -> str:
    """Render an asciicast file."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title, "env": {"TERM": "xterm-256color"}}
    lines = [header, *([round(event.seconds, 2), "o", event.text] for event in events)]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def parse_cast(text: str) -> list[Event]:
    """Parse an asciicast file."""
    return [Event(seconds, output) for seconds, _, output in map(json.loads, text.splitlines()[1:])]
