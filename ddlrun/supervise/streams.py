"""ddlrun's own output streams, written without blocking and with bounded memory."""

import errno
import os
import select
import stat

from ddlrun.runs.output_lines import LineMerger
from ddlrun.supervise.backlog import Backlog

# With more bytes than this waiting for a slow terminal or pipe, the ranks are not read any more.
MOST_WAITING = 1 << 20
# A descriptor that is ready takes this much (PIPE_BUF) without blocking.
READY_BYTES = 4096


class OutputStream:
    """Standard output or standard error; what it does not take at once is stored."""

    def __init__(self, fd: int, backlog: Backlog, *, colour: bool = False) -> None:
        self.fd, self.colour = fd, colour
        self.closed = False
        """Whether it can be written no more."""
        self.error: str | None = None
        """The reason for that; None: its reader is gone."""
        self.lines = LineMerger(fd if os.isatty(fd) else None)
        self.unwritten = 0
        """The number of bytes that were given up."""
        self._waiting = backlog
        self._out = fd
        self._regular = False
        try:
            self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if os.isatty(fd):  # a file description of its own: the shell's has to go on blocking
                self._out = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # as after su: the terminal is another user's
            return
        except OSError:
            self.closed = True

    @property
    def waiting(self) -> int:
        """The number of bytes that were not taken yet."""
        return len(self._waiting)

    def write(self, text: bytes) -> None:
        """Write as much as the stream takes now, and store the rest for `flush`."""
        if self.closed:
            self.unwritten += len(text)
            return
        self.unwritten += self._waiting.append(text)
        self.flush()

    def close(self) -> None:
        """Give up what waits, and close the file description that was opened here."""
        self._give_up()
        if self._out != self.fd:
            os.close(self._out)
            self._out = self.fd

    def flush(self) -> None:
        """Write as much as the stream takes now; if its reader is gone, it is `closed`."""
        try:
            while self._waiting and not self.closed:
                if not self._regular and not select.select([], [self._out], [], 0)[1]:
                    return
                block = self._waiting.head(MOST_WAITING if self._regular else READY_BYTES)
                self._waiting.remove(os.write(self._out, block))
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self.closed = True
            self.error = error.strerror if isinstance(error, OSError) and error.errno != errno.EPIPE else None
            self._give_up()

    def _give_up(self) -> None:
        self.unwritten += self.waiting
        self._waiting.clear()
