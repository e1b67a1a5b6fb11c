"""The event log of rank 0 in the run folder: one JSON object per line."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

NAME = "ddl.jsonl"


class EventLog:
    """Appends events to a file in `folder`. Without a folder, or if the file cannot be written, events are dropped."""

    def __init__(self, folder: str = "") -> None:
        self._path = os.path.join(folder, NAME) if folder and os.path.isdir(folder) else ""

    def write(self, event: dict[str, Any]) -> None:
        """Append an event, with the time in seconds since 1970."""
        if self._path:
            with (
                suppress(OSError),
                open(self._path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            ):
                file.write(json.dumps({"time": time.time(), **event}) + "\n")
