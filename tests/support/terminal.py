"""A shell at a terminal of its own, as a user sits at one."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ddlrun.keeper.program_streams import set_size

DEADLINE_SECONDS = 60.0
CHUNK = 1 << 14
# Colours and movements of the cursor: the prompt of Python 3.13 has both.
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[=>])")


class Terminal:
    """The user's side of a pseudo terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.output = ""

    def send(self, keys: str) -> None:
        """Send key strokes; what was printed before no longer counts for `wait_for`."""
        self.output = ""
        os.write(self._fd, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal; what was printed before no longer counts for `wait_for`."""
        self.output = ""
        set_size(self._fd, rows, columns)

    def wait_for(self, pattern: str) -> None:
        """Wait until the output since the last key stroke, without its escape sequences, has a match.

        Raises AssertionError with the output.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while re.search(pattern, ESCAPES.sub("", self.output)) is None:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"no {pattern!r} in {self.output!r}"
            self.output += os.read(self._fd, CHUNK).decode(errors="replace")


@contextmanager
def shell_at_terminal(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> Iterator[Terminal]:
    """Start a shell at a terminal that is its own, and kill it at the end."""
    user, shell = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *argv], stdin=shell, stdout=shell, stderr=shell, env=environ, cwd=folder
    )
    os.close(shell)
    try:
        yield Terminal(user)
    finally:
        process.kill()
        process.wait()
        os.close(user)
