"""ddlrun's own output streams and log files, written without blocking and with bounded memory."""

import errno
import os
import re
import select
import stat
from collections.abc import Callable
from typing import IO

from ddlrun.runs.store import open_private
from ddlrun.supervise.backlog import Backlog

# With more bytes than this waiting for a slow terminal or pipe, the ranks are not read any more.
MOST_WAITING = 1 << 20
# A descriptor that is ready takes this much (PIPE_BUF) without blocking.
READY_BYTES = 4096


def tag_lines(block: bytes, tag: bytes) -> bytes:
    r"""Put a tag before each line; a carriage return ends a line, too.

    >>> tag_lines(b"a\nb\r\n50%\r60%\r", b"[0] ")
    b'[0] a\n[0] b\r\n[0] 50%\r[0] 60%\r'
    """
    if not tag or not block:
        return block
    if b"\r" not in block:
        return tag + block[:-1].replace(b"\n", b"\n" + tag) + block[-1:]
    return tag + re.sub(rb"(\r\n|\n|\r(?!\n))(?=[\s\S])", lambda match: match[0] + tag, block)


class LineMerger:
    """The lines of several owners in one stream: another owner's output ends an unfinished line.

    On a terminal, it replaces a line that its owner keeps rewriting, such as a progress bar.
    """

    def __init__(self, *, terminal: bool = False) -> None:
        self._terminal = terminal
        self._owner: object = None
        """The owner of the line in which the next output begins; None: it begins a new line."""
        self._open = False
        """Whether that line has text before the next output."""
        self._rewriters: set[object] = set()
        """The owners whose last line began after a carriage return, or ended with one."""

    @property
    def inside_a_line(self) -> bool:
        """Whether the last line is unfinished."""
        return self._open

    def join(self, owner: object, block: bytes, tag: bytes, *, raw: bool = False) -> bytes:
        """Return the bytes to write for a block of an owner's lines, each after a tag.

        The lines of an owner that controls the terminal are `raw`: never replaced.
        """
        if not block:
            return b""
        same = owner == self._owner
        goes_on = self._open and same
        kept = self._owner is None or same or not (self._open or self._terminal)
        end = b"" if kept else self.end_line()
        _, newline, last = block.rpartition(b"\n")
        if newline or raw:
            self._rewriters.discard(owner)
        if b"\r" in last and not raw:
            self._rewriters.add(owner)
        self._open = not block.endswith((b"\n", b"\r"))
        self._owner = None if block.endswith(b"\n") else owner
        tagged = tag_lines(block, tag)
        return end + (tagged[len(tag) :] if goes_on else tagged)

    def end_line(self) -> bytes:
        """Return the bytes after which a new line begins."""
        owner, self._owner = self._owner, None
        self._open = False
        if owner in self._rewriters and self._terminal:
            return b"\r\x1b[K"
        return b"" if owner is None else b"\n"


class OutputStream:
    """Standard output or standard error; what it does not take at once is stored."""

    def __init__(self, fd: int, backlog: Backlog, *, colour: bool = False) -> None:
        self.fd, self.colour = fd, colour
        self.closed = False
        """Whether it can be written no more."""
        self.error: str | None = None
        """The reason for that; None: its reader is gone."""
        self.lines = LineMerger(terminal=os.isatty(fd))
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


class OutputLog:
    """A log file. After a failure, as on a full disk, it is given up with a message, and the job goes on."""

    def __init__(self, path: str, complain: Callable[[str], None]) -> None:
        self._path, self._complain = path, complain
        self._mode = "wb"
        self.lines = LineMerger()
        self._file: IO[bytes] | None = None
        self._failed = False

    def write(self, block: bytes) -> None:
        """Append a block; an empty one creates the file."""
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = open(self._path, self._mode, buffering=0, opener=open_private)  # noqa: SIM115 - `close`
                self._mode = "ab"
            self._file.write(block)
        except OSError as error:
            self._failed = True
            self._complain(f"no more log in {self._path}: {error.strerror}")

    def close(self) -> None:
        """Close the file; the next block opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
