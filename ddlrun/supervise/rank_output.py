"""The ranks' output on its way to the console and to files: whole lines, tagged, in bounded memory."""

import time
from collections.abc import Callable, Sequence

from ddlrun.plan.outcome import Outcome
from ddlrun.plan.supervision import OutputStyle
from ddlrun.runs.output_lines import RankTags
from ddlrun.supervise.console_lines import ConsoleLines
from ddlrun.supervise.job_log import JobLog
from ddlrun.supervise.rank_files import RankFiles
from ddlrun.supervise.streams import OutputStream

# A longer line is passed on in parts.
LONGEST = 1 << 16
# Part of a line is printed after this time without its end.
PATIENCE_SECONDS = 0.5
STREAMS = 2


def split_lines(data: bytes) -> tuple[bytes, bytes]:
    r"""Split data into whole lines and the beginning of the next one; a CR at the very end may become CR LF.

    >>> split_lines(b"a\nb\rc"), split_lines(b"x\r")
    ((b'a\nb\r', b'c'), (b'', b'x\r'))
    """
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    return (data, b"") if len(data) - end > LONGEST else (data[:end], data[end:])


class RankOutput:
    """The output of all ranks, printed and stored as an OutputStyle says."""

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
        self._style, self._streams, self._log, self._files = style, streams, log, files
        self._tags = RankTags(style, ranks)
        self._lines = ConsoleLines(style, self._tags, self._streams, before)
        self._parts: dict[tuple[int, int], bytes] = {}
        self._waiting_since: dict[tuple[int, int], float] = {}

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
            self._lines.add_raw(rank, stream, data)
            return
        part = self._parts.get(key, b"")
        lines, rest = split_lines(part + data if part else data)
        if rest:
            self._parts[key] = rest
            if lines or key not in self._waiting_since:
                self._waiting_since[key] = time.monotonic()
        elif part:
            del self._parts[key], self._waiting_since[key]
        self._print(rank, stream, lines)

    def end(self, rank: int, *, failed: bool = False) -> None:
        """Print the rest of a rank's output; the report of the job has the traceback of a rank that failed."""
        if failed:
            self._lines.fail(rank)
        for stream in range(STREAMS):
            self._print_part((rank, stream))
        if not failed:
            self._lines.end(rank)
        self._log.end(rank)
        if self._files is not None:
            self._files.end(rank)

    def conclude(self, outcome: Outcome) -> bool:
        """Print what was held back and no report covers; return True if the end of the first failure is in view."""
        return self._lines.conclude(outcome)

    def tick(self) -> float | None:
        """Print lines that have waited long enough; return the seconds until the next one has."""
        delays = [delay for delay in (self._print_parts(), self._lines.tick()) if delay is not None]
        return min(delays, default=None)

    def _print_parts(self) -> float | None:
        """Print parts of lines that have waited long enough; return the seconds until the next one has."""
        if not self._waiting_since:
            return None
        now = time.monotonic()
        for key in [key for key, since in self._waiting_since.items() if now >= since + PATIENCE_SECONDS]:
            self._print_part(key)
        if not self._waiting_since:
            return None
        return max(0.0, min(self._waiting_since.values()) + PATIENCE_SECONDS - now)

    def hold(self) -> None:
        """Let parts of lines wait from now on: their ends may have been written, but are not read at present."""
        now = time.monotonic()
        self._waiting_since = dict.fromkeys(self._waiting_since, now)

    def _print_part(self, key: tuple[int, int]) -> None:
        part = self._parts.pop(key, b"")
        self._waiting_since.pop(key, None)
        self._print(*key, part)

    def _print(self, rank: int, stream: int, lines: bytes) -> None:
        if lines:
            self._log.write(rank, stream, lines)
            self._lines.add(rank, stream, lines)
