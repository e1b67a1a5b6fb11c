"""What rank 0 keeps in the run folder: a JSON object a line."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

NAME = "ddl.jsonl"


class EventLog:
    """Appends to a file in `folder`; where there is none, or it cannot be written, nothing is kept."""

    def __init__(self, folder: str = "") -> None:
        self._path = os.path.join(folder, NAME) if folder and os.path.isdir(folder) else ""

    def write(self, **said: object) -> None:
        """Append one object, with the time in seconds since 1970."""
        if self._path:
            with (
                suppress(OSError),
                open(self._path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            ):
                file.write(json.dumps({"time": time.time(), **said}) + "\n")
