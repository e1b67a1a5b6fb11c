"""The ranks' output on its way to the console and to files: whole lines, tagged, folded, tracebacks held back."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.supervision import OutputStyle
from ddlrun.plan.tracebacks import last_lines, plain_lines
from ddlrun.runs.output_lines import RankTags
from ddlrun.supervise.folding import LineFolder
from ddlrun.supervise.held_tracebacks import HeldTracebacks
from ddlrun.supervise.rank_files import JobLog, RankFiles
from ddlrun.supervise.streams import OutputStream
from ddlrun.wire.loop import NEVER

# A longer line is passed on in parts.
LONGEST = 1 << 16
# Part of a line is printed after this time without its end.
PATIENCE_SECONDS = 0.5
STDERR, STREAMS = 1, 2
# The lines of standard error on which a reader surely looks when the report of the job follows.
LINES_IN_VIEW = 24
# The last lines of a failure that need no repetition if they are in view, such as the end of a long traceback.
ENOUGH_LINES = 16


def split_lines(data: bytes) -> tuple[bytes, bytes]:
    r"""Split data into whole lines and the beginning of the next one; a CR at the very end may become CR LF.

    >>> split_lines(b"a\nb\rc"), split_lines(b"x\r")
    ((b'a\nb\r', b'c'), (b'', b'x\r'))
    """
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    return (data, b"") if len(data) - end > LONGEST else (data[:end], data[end:])


class RankOutput:
    """The output of all ranks, printed and stored as an OutputStyle says, in bounded memory."""

    def __init__(
        self,
        style: OutputStyle,
        streams: Sequence[OutputStream],
        *,
        ranks: int,
        log: JobLog,
        files: RankFiles | None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Print on the streams, those of standard output and standard error; call `before` before that.

        `log` stores whole lines, and `files` the bytes.
        """
        self._style, self._streams, self._log, self._files, self._before = style, streams, log, files, before
        self._tags = RankTags(style, ranks)
        self._parts: dict[tuple[int, int], bytes] = {}
        self._waiting_since: dict[tuple[int, int], float] = {}
        self._tracebacks = HeldTracebacks()
        self._folder = LineFolder(ranks if style.ranks is None else len(style.ranks)) if style.fold else None
        self._recent: deque[tuple[tuple[int, ...], bytes]] = deque(maxlen=LINES_IN_VIEW)
        """Ranks, and lines of their standard error."""

    def start(self, rank: int, host: str) -> None:
        """Set a rank's host, and create its files."""
        self._tags.hosts[rank] = host
        self._log.start(rank, host)
        if self._files is not None:
            self._files.start(rank)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Print and store a rank's output to standard output (0) or standard error (1)."""
        key = rank, stream
        if self._files is not None:
            self._files.write(rank, stream, data)
        if rank == self._style.raw:
            self._log.write(rank, stream, data)
            self._before()
            console = self._streams[stream]
            console.write(console.lines.join(key, data, b"", raw=True))
            return
        part = self._parts.get(key, b"")
        lines, rest = split_lines(part + data if part else data)
        if rest:
            self._parts[key] = rest
            if lines or key not in self._waiting_since:
                self._waiting_since[key] = time.monotonic()
        elif part:
            del self._parts[key], self._waiting_since[key]
        self._pass_on(rank, stream, lines)

    def end(self, rank: int, *, failed: bool = False) -> None:
        """Print the rest of a rank's output; the report of the job has the traceback of a rank that failed."""
        if failed:
            self._tracebacks.keep(rank)
        for stream in range(STREAMS):
            self._pass_on_part((rank, stream))
        if not failed:
            self._print(rank, STDERR, self._tracebacks.release(rank))
        self._log.end(rank)
        if self._files is not None:
            self._files.end(rank)

    def conclude(self, outcome: Outcome) -> bool:
        """Print what was held back and no report covers; return True if the end of the first failure is in view."""
        for rank, text in self._tracebacks.conclude(outcome.root, outcome.ends):
            self._print(rank, STDERR, text)
        self._print_folded(everything=True)
        return outcome.root is not None and self._is_in_view(outcome.root)

    def tick(self) -> float:
        """Print lines that have waited long enough; return the time at which the next one has."""
        now = time.monotonic()
        for key in [key for key, since in self._waiting_since.items() if now >= since + PATIENCE_SECONDS]:
            self._pass_on_part(key)
        for rank in self._tracebacks.due():
            self._print(rank, STDERR, self._tracebacks.release(rank))
        self._print_folded()
        part = min(self._waiting_since.values(), default=NEVER) + PATIENCE_SECONDS
        return min(part, self._tracebacks.deadline(), NEVER if self._folder is None else self._folder.deadline())

    def hold(self) -> None:
        """Let parts of lines wait from now on: their ends may have been written, but are not read at present."""
        now = time.monotonic()
        self._waiting_since = dict.fromkeys(self._waiting_since, now)

    def _pass_on_part(self, key: tuple[int, int]) -> None:
        part = self._parts.pop(key, b"")
        self._waiting_since.pop(key, None)
        self._pass_on(*key, part)

    def _pass_on(self, rank: int, stream: int, lines: bytes) -> None:
        """Store a rank's lines, and print them if the console shows the rank; those that are held back, later."""
        if not lines:
            return
        self._log.write(rank, stream, lines)
        if self._style.ranks is not None and rank not in self._style.ranks:
            return
        if stream == STDERR:
            lines = self._tracebacks.add(rank, lines)
        else:
            self._print(rank, STDERR, self._tracebacks.go_on(rank))
        self._print(rank, stream, lines)

    def _is_in_view(self, root: RankEnd) -> bool:
        """Return True if the lines that were printed last have the end of a failure."""
        own = b"".join(line for ranks, line in self._recent if root.rank in ranks).decode(errors="replace")
        count = min(ENOUGH_LINES, len(last_lines(root.tail)))
        return own != "" and plain_lines(own)[-count:] == plain_lines(root.tail)[-count:]

    def _print(self, rank: int, stream: int, lines: bytes) -> None:
        if self._folder is None:
            self._write((rank,), stream, lines)
        else:
            self._folder.add(rank, stream, lines)
            self._print_folded()

    def _print_folded(self, *, everything: bool = False) -> None:
        for line in () if self._folder is None else self._folder.take(everything=everything):
            self._write(line.ranks, line.stream, line.text)

    def _write(self, ranks: Iterable[int], stream: int, lines: bytes) -> None:
        if stream == STDERR:
            self._recent.extend((tuple(ranks), line) for line in lines.splitlines(keepends=True)[-LINES_IN_VIEW:])
        if lines:
            console = self._streams[stream]
            self._before()
            console.write(
                console.lines.join((min(ranks), stream), lines, self._tags.render(ranks, colour=console.colour))
            )
