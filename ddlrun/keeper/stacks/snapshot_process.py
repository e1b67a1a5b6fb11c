"""The child of a keeper that takes a snapshot of its rank, while the keeper itself goes on with its work."""

from __future__ import annotations

import os

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files
from ddlrun.keeper.prctl import PR_SET_PDEATHSIG, load_prctl
from ddlrun.keeper.signals import restore_defaults

CHUNK = 1 << 16
# The snapshot where the child could not start, or was killed, as by a host without memory.
NOTHING = b'{"processes": [], "connections": []}'
END = b"\n"


class SnapshotProcess:
    """The child, and what it has written so far."""

    def __init__(self, program: int, seconds: float) -> None:
        """Start the snapshot of a program and its descendants; all stacks together take up to some seconds."""
        self.fd, end = os.pipe2(os.O_CLOEXEC)
        self._text = b""
        keeper = os.getpid()
        try:
            self._pid: int | None = os.fork()
        except OSError:  # this user may have no further process
            self._pid = None
        if self._pid == 0:
            _take(keeper, program, seconds, end)
        os.close(end)

    def read(self) -> bytes | None:
        """Read what the child has written; return the snapshot once it is complete, None before."""
        chunk = os.read(self.fd, CHUNK)
        self._text += chunk
        if chunk:
            return None
        self.close()
        return self._text if self._text.endswith(END) else NOTHING

    def stop(self) -> None:
        """End the child and what it has started."""
        self.close()
        if self._pid is None:
            return
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except OSError:  # it has ended, or is about to begin
            return

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.fd)


def _take(keeper: int, program: int, seconds: float, output: int) -> None:
    """Write the snapshot of a program to a descriptor, and exit: the child's part."""
    try:
        os.setpgid(0, 0)
        load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
        restore_defaults()
        # The keeper's modules may come from an archive, whose descriptor is closed, too.
        from ddlrun.keeper.stacks.snapshot import take_snapshot  # noqa: PLC0415 - in the child alone

        close_files(0, 1, 2, output)
        if os.getppid() == keeper:
            with open(output, "wb") as file:
                file.write(take_snapshot(program, seconds).encode(errors="replace") + END)
    finally:
        os._exit(0)
