"""ddlrun's own output streams, written without blocking and with bounded memory."""

import errno
import os
import select
import stat

from ddlrun.runs.output_lines import LineMerger
from ddlrun.wire.loop import ENDED, WRITE, Loop

# With more bytes than this waiting for a slow terminal or pipe, the ranks are not read any more.
MOST_WAITING = 1 << 20
# A descriptor that is ready takes this much (PIPE_BUF) without blocking.
READY_BYTES = 4096
# Of what waits, this much is in memory, and the rest in a file, which is read in chunks.
MOST_IN_MEMORY, CHUNK = 8 << 20, 1 << 20


class Backlog:
    """A queue of bytes that wait for a slow reader."""

    def __init__(self, path: str, limit: int = MOST_IN_MEMORY) -> None:
        """Create an empty queue; what is beyond a limit in memory goes to a file, which is unlinked at once."""
        self._path, self._limit = path, limit
        self._memory = bytearray()
        self._file: int | None = None
        self._read_at = self._end = 0

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self._memory) + self._end - self._read_at

    def append(self, block: bytes) -> int:
        """Add bytes; return the number of those that could not be stored, as on a full disk."""
        if self._file is None and len(self._memory) <= self._limit:
            self._memory += block
            return 0
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                os.unlink(self._path)
            written = os.pwrite(self._file, block, self._end)
        except OSError:
            return len(block)
        self._end += written
        return len(block) - written

    def head(self, size: int) -> bytes:
        """Return the first bytes."""
        if not self._memory and self._file is not None:
            self._memory += os.pread(self._file, CHUNK, self._read_at)
            self._read_at += len(self._memory)
            if self._read_at == self._end:
                self._close()
        return bytes(self._memory[:size])

    def remove(self, size: int) -> None:
        """Remove bytes that `head` has returned."""
        del self._memory[:size]

    def clear(self) -> None:
        """Remove all bytes."""
        self._memory.clear()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._read_at = self._end = 0


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
        self.reader_gone = False
        """Whether the program behind a pipe or a socket has ended, such as a pager or the sshd of a session."""
        self._waiting = backlog
        self._out = fd
        self._loop: Loop | None = None
        self._watched: int | None = None
        """The events for which the loop watches it; None: it does not."""
        self._mode = 0
        self._never_blocks = False
        try:
            self._mode = os.fstat(fd).st_mode
            self._never_blocks = stat.S_ISREG(self._mode)
            if not self._never_blocks and not stat.S_ISSOCK(self._mode):
                # A file description of its own: that of the shell has to go on blocking.
                self._out = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                self._never_blocks = True
        except (FileNotFoundError, PermissionError):  # as after su: the terminal is another user's
            return
        except OSError as error:
            self.closed = error.errno != errno.ENXIO  # no program has opened the other end of a pipe

    def join(self, loop: Loop) -> None:
        """Write what waits when the stream takes more, and notice the end of the reader of a pipe or a socket."""
        self._loop = loop
        self._watch()

    def _watch(self) -> None:
        idle = 0 if stat.S_ISFIFO(self._mode) or stat.S_ISSOCK(self._mode) else None
        wanted = WRITE if self.waiting else idle
        if self._loop is None or wanted == self._watched or self.reader_gone:
            return
        self._watched = wanted
        if wanted is None:
            self._loop.forget(self.fd)
        else:
            self._loop.watch(self.fd, wanted, self._on_events)

    def _on_events(self, events: int) -> None:
        self.flush()
        if self._loop is not None and events & ENDED:
            self._loop.forget(self.fd)
            self.reader_gone = True

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
                # A socket, or another user's terminal, may block: whether it takes more is looked at before each block.
                if not self._never_blocks and not select.select([], [self._out], [], 0)[1]:
                    break
                block = self._waiting.head(MOST_WAITING if self._never_blocks else READY_BYTES)
                self._waiting.remove(os.write(self._out, block))
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self.closed = True
            self.error = error.strerror if isinstance(error, OSError) and error.errno != errno.EPIPE else None
            self._give_up()
        self._watch()

    def _give_up(self) -> None:
        self.unwritten += self.waiting
        self._waiting.clear()
