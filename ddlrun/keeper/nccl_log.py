"""NCCL's log of the first rank of a host: its lines on networks are sent to ddlrun.

NCCL writes it to a pipe of the keeper, not to the output of the program. NCCL may write more lines than are worth
sending: one per connection.
"""

from __future__ import annotations

import os

from ddlrun.keeper import protocol
from ddlrun.keeper.proc_files import read_text
from ddlrun.keeper.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddlrun.keeper.connection import LauncherConnection

LEVEL, PATH = "NCCL_DEBUG", "NCCL_DEBUG_FILE"
# NCCL's own files with settings, over which the variables would have precedence.
SETTINGS = ("/etc/nccl.conf", "~/.nccl.conf")
SENT = (b"Using network", b"NET/", b"Bootstrap", b"Init timings", b"NCCL_IB_DISABLE", b" NCCL WARN ")
MOST_BYTES, CHUNK = 1 << 18, 1 << 16


def is_free(environ: Mapping[str, str]) -> bool:
    """Return True if no user or administrator has chosen what NCCL logs."""
    files = (*SETTINGS, environ.get("NCCL_CONF_FILE", ""))
    return not {LEVEL, PATH} & environ.keys() and not any(
        LEVEL in read_text(os.path.expanduser(name)) for name in files if name
    )


class NcclLog(Task):
    """The read end of the pipe. The write end stays open here, so that the pipe never ends, or breaks."""

    def __init__(self, connection: LauncherConnection) -> None:
        """Make the pipe."""
        self._connection = connection
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        self._rest, self._left = b"", MOST_BYTES

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a program's NCCL writes to the pipe."""
        return {LEVEL: "INFO", PATH: f"/proc/{os.getpid()}/fd/{self._write_end}"}

    def on_ready(self, _events: int) -> None:
        """Read once."""
        self._read()

    def _read(self) -> bool:
        """Read once, and send the lines on networks; return False if there was nothing."""
        try:
            *lines, self._rest = (self._rest + os.read(self.fd, CHUNK)).split(b"\n")
        except BlockingIOError:
            return False
        self._rest = self._rest[-CHUNK:]
        text = b"".join(line + b"\n" for line in lines if any(word in line for word in SENT))[: self._left]
        self._left -= len(text)
        if text:
            self._connection.send(protocol.NCCL_LOG, text)
        return True

    def leave(self) -> None:
        """Send the rest, and close the pipe."""
        super().leave()
        if self.fd >= 0:
            while self._read():
                pass
            os.close(self._write_end)
            os.close(self.fd)
            self.fd = -1
