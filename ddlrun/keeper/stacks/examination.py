"""The examination of a rank's processes: a child of the keeper, which itself goes on with its work meanwhile."""

from __future__ import annotations

import os

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files
from ddlrun.keeper.prctl import PR_SET_PDEATHSIG, load_prctl
from ddlrun.keeper.signals import restore_defaults

CHUNK = 1 << 16
# The report where the examiner could not start, or was killed, as by a host without memory.
NOTHING = b'{"processes": [], "connections": []}'
END = b"\n"


class Examination:
    """A running examiner, and the report of it so far."""

    def __init__(self, program: int, seconds: float) -> None:
        """Start the examiner of a program and its descendants; all stacks together take up to some seconds."""
        self.fd, end = os.pipe2(os.O_CLOEXEC)
        self._report = b""
        keeper = os.getpid()
        try:
            self._pid: int | None = os.fork()
        except OSError:  # this user may have no further process
            self._pid = None
        if self._pid == 0:
            _examine(keeper, program, seconds, end)
        os.close(end)

    def read(self) -> bytes | None:
        """Read what the examiner has written; return the report once it is complete, None before."""
        chunk = os.read(self.fd, CHUNK)
        self._report += chunk
        if chunk:
            return None
        self.close()
        return self._report if self._report.endswith(END) else NOTHING

    def stop(self) -> None:
        """End the examiner and what it has started."""
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


def _examine(keeper: int, program: int, seconds: float, output: int) -> None:
    """Write the report of a program to a descriptor, and exit: the child's part."""
    try:
        os.setpgid(0, 0)
        load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
        restore_defaults()
        # The keeper's modules may come from an archive, whose descriptor is closed, too.
        from ddlrun.keeper.stacks.inspection import inspect_program  # noqa: PLC0415 - in the child alone

        close_files(0, 1, 2, output)
        if os.getppid() == keeper:
            with open(output, "wb") as file:
                file.write(inspect_program(program, seconds).encode(errors="replace") + END)
    finally:
        os._exit(0)
