"""The user's command for the events of a run."""

import os
import subprocess
import time
from collections.abc import Sequence


class EventCommand:
    """A command that is started for each event, in the background."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Take the command; an empty one is never started."""
        self._argv = argv
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, event: str) -> str | None:
        """Start the command with an event as its standard input; return the problem if that is impossible."""
        if not self._argv:
            return None
        try:
            # Not a pipe, which would end ddlrun by SIGPIPE if the command does not read it.
            with open(os.memfd_create("ddlrun-event"), "w+b") as file:
                file.write(event.encode())
                file.seek(0)
                process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
                    self._argv, stdin=file, stdout=subprocess.DEVNULL, start_new_session=True
                )
        except OSError as error:
            return f"cannot start {self._argv[0]!r}: {error.strerror}"
        self._processes.append(process)
        return None

    def finish(self, seconds: float) -> str | None:
        """Wait for the commands that run; kill them after some seconds, and return that as a problem."""
        deadline = time.monotonic() + seconds
        late = 0
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late += 1
        self._processes.clear()
        return f"{self._argv[0]!r} did not end within {seconds:g} s, and was killed" if late else None
