"""What the ranks write, on its way to the terminal and to files: whole lines, tagged, in bounded memory."""

import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable
from typing import IO

from ddlrun.plan.supervision import OutputStyle

# A line that is longer is passed on in parts.
LONGEST = 1 << 16
# More than this waiting for a slow terminal or pipe, and the ranks are not read any more.
MOST_WAITING = 1 << 20
# Part of a line that nobody ends is shown after so many seconds.
PATIENCE = 0.5
OPEN_FILES = 128
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
STREAMS = ("stdout", "stderr")


def tag_lines(block: bytes, tag: bytes) -> bytes:
    r"""Put a tag before each line; a carriage return ends one, too.

    >>> tag_lines(b"a\nb\r\n50%\r60%\r", b"[0] ")
    b'[0] a\n[0] b\r\n[0] 50%\r[0] 60%\r'
    """
    if not tag or not block:
        return block
    if b"\r" not in block:
        return tag + block[:-1].replace(b"\n", b"\n" + tag) + block[-1:]
    return tag + re.sub(rb"(\r\n|\n|\r(?!\n))(?=[\s\S])", lambda found: found[0] + tag, block)


def split_lines(data: bytes) -> tuple[bytes, bytes]:
    r"""Part what is complete from the beginning of a line; a CR at the very end may become CR LF.

    >>> split_lines(b"a\nb\rc"), split_lines(b"x\r")
    ((b'a\nb\r', b'c'), (b'', b'x\r'))
    """
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    return (data, b"") if len(data) - end > LONGEST else (data[:end], data[end:])


class LineMerger:
    """Lines of many in one stream: one that is not ended goes on only if nobody else wrote since."""

    def __init__(self) -> None:
        self._owner: int | None = None

    @property
    def inside_a_line(self) -> bool:
        """Whether the last that was written is not a whole line."""
        return self._owner is not None

    def join(self, owner: int, block: bytes, tag: bytes) -> bytes:
        """Return what is to be written for the lines of one of them."""
        if not block:
            return b""
        before = self._owner
        self._owner = None if block.endswith((b"\n", b"\r")) else owner
        shown = tag_lines(block, tag)
        if before is None:
            return shown
        return shown[len(tag) :] if before == owner else b"\n" + shown


class OutputStream:
    """One of our own streams: written as it takes it, never waited for."""

    def __init__(self, fd: int, *, colour: bool = False) -> None:
        self.fd, self.colour = fd, colour
        self.closed = False
        self.error: str | None = None
        """Why it is closed, unless nobody reads it any more."""
        self.lines = LineMerger()
        self.dropped = 0
        self._waiting = bytearray()
        self._out = fd
        try:
            self._plain = stat.S_ISREG(os.fstat(fd).st_mode)
            if os.isatty(fd):  # a file description of our own: the shell's must not stop blocking
                self._out = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # as after su: the terminal is another user's
            return
        except OSError:
            self.closed = True

    @property
    def waiting(self) -> int:
        """The bytes that it has not taken yet."""
        return len(self._waiting)

    def write(self, text: bytes) -> None:
        """Write what it takes now, and the rest later: see `flush`. Far too much of a rest is dropped."""
        if self.closed:
            return
        if len(self._waiting) > 8 * MOST_WAITING:  # a job that is being ended is read on, whoever reads us
            self.dropped += len(text)
            return
        self._waiting += text
        self.flush()

    def close(self) -> None:
        """Close what we have opened ourselves."""
        if self._out != self.fd:
            os.close(self._out)
            self._out = self.fd

    def flush(self) -> None:
        """Write what is taken at once. A stream that nobody reads any more is `closed`."""
        try:
            while self._waiting and not self.closed:
                if not self._plain and not select.select([], [self._out], [], 0)[1]:
                    return
                # What is ready takes this much (PIPE_BUF) without making us wait.
                size = len(self._waiting) if self._plain else 4096
                del self._waiting[: os.write(self._out, self._waiting[:size])]
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self.closed = True
            self.error = error.strerror if isinstance(error, OSError) and error.errno != errno.EPIPE else None
            self._waiting.clear()


class OutputLog:
    """A file that takes what it can: a full disk costs its rest, with a word, and not the job."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._mode = "wb"
        self.lines = LineMerger()
        self._file: IO[bytes] | None = None
        self._dropped = False

    def write(self, block: bytes) -> None:
        """Add a block, or make the file for an empty one; says once that it cannot."""
        if self._dropped:
            return
        try:
            if self._file is None:
                self._file = open(self._path, self._mode, buffering=0, opener=_private)  # noqa: SIM115 - `close`
                self._mode = "ab"
            self._file.write(block)
        except OSError as error:
            self._dropped = True
            self._say(f"no more log in {self._path}: {error.strerror}")

    def close(self) -> None:
        """Close the file for now; the next block opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class RankOutput:
    """Takes what each rank writes, and shows and stores it as the style says."""

    def __init__(
        self,
        style: OutputStyle,
        consoles: tuple[OutputStream, OutputStream],
        logs: tuple[OutputLog, OutputLog],
        ranks: int,
        say: Callable[[str], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called whenever something is about to be shown."""
        self._style, self._consoles, self._logs, self._say = style, consoles, logs, say
        self._before = before
        self._width = len(str(ranks - 1))
        self._tag = ranks > 1 if style.tag is None else style.tag
        self._held: dict[tuple[int, int], bytes] = {}
        self._since: dict[tuple[int, int], float] = {}
        self._files: dict[tuple[int, int], OutputLog] = {}
        self._hosts: dict[int, str] = {}
        for log in logs:
            log.write(b"")

    def start(self, rank: int, host: str) -> None:
        """Learn where a rank is; with a folder, make its files."""
        self._hosts[rank] = host
        for stream in (0, 1) if self._style.folder else ():
            self._file(rank, stream).write(b"")

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Take what a rank wrote to standard output (0) or standard error (1)."""
        key = rank, stream
        if self._style.folder:
            self._file(rank, stream).write(data)
        held = self._held.get(key, b"")
        lines, rest = split_lines(held + data if held else data)
        if rest:
            self._held[key] = rest
            if lines or key not in self._since:
                self._since[key] = time.monotonic()
        elif held:
            del self._held[key], self._since[key]
        self._show(rank, stream, lines)

    def end(self, rank: int) -> None:
        """Show what is left of a rank's last lines; they may lack their end."""
        for stream in (0, 1):
            self._release((rank, stream))
            file = self._files.get((rank, stream))
            if file is not None:
                file.close()

    def tick(self) -> float | None:
        """Show parts of lines that nobody ends; return the seconds until the next of them is due."""
        if not self._since:
            return None
        now = time.monotonic()
        for key in [key for key, since in self._since.items() if now >= since + PATIENCE]:
            self._release(key)
        return max(0.0, min(self._since.values()) + PATIENCE - now) if self._since else None

    def hold(self) -> None:
        """Wait with parts of lines: their rest may be there, but is not read as long as others have to wait."""
        now = time.monotonic()
        self._since = dict.fromkeys(self._since, now)

    @property
    def full(self) -> bool:
        """Whether the consoles lag so far behind that no more should be read."""
        return any(console.waiting > MOST_WAITING for console in self._consoles)

    def tag(self, rank: int, *, colour: bool = False) -> bytes:
        """Return what stands before a rank's lines."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S ") if self._style.timestamp else ""
        name = f"[{rank}@{self._hosts.get(rank, '?')}]" if self._tag else ""
        if name and colour:
            name = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{name}\x1b[0m"
        return f"{stamp}{name}{' ' * bool(name)}".encode()

    def _release(self, key: tuple[int, int]) -> None:
        rest = self._held.pop(key, b"")
        self._since.pop(key, None)
        self._show(*key, rest)

    def _show(self, rank: int, stream: int, lines: bytes) -> None:
        if not lines:
            return
        log = self._logs[stream]
        log.write(log.lines.join(rank, lines, self.tag(rank)))
        console = self._consoles[stream]
        if self._style.ranks is None or rank in self._style.ranks:
            self._before()
            console.write(console.lines.join(rank, lines, self.tag(rank, colour=console.colour)))

    def _file(self, rank: int, stream: int) -> OutputLog:
        key = rank, stream
        if key not in self._files:
            for oldest in list(self._files.values())[: len(self._files) + 1 - OPEN_FILES]:
                oldest.close()
            folder = f"{self._style.folder}/rank.{rank:0{self._width}d}"
            try:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            except OSError as error:
                self._say(f"--output-filename {folder}: {error.strerror}")
            self._files[key] = OutputLog(f"{folder}/{STREAMS[stream]}", self._say)
        return self._files[key]
