"""The output of a job: that of its ranks, the process manager and ddlrun, on the console and in logs; a status line."""

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Sequence

from ddlrun.managers.openmpi.messages import HARMLESS, MpirunMessages
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.runs.output_lines import tag_switches
from ddlrun.supervise.cause import EndCause, EndReason
from ddlrun.supervise.rank_files import JobLog, OpenFiles, RankFiles, most_open_files
from ddlrun.supervise.rank_output import RankOutput
from ddlrun.supervise.standard_input import terminal_size
from ddlrun.supervise.streams import MOST_WAITING, Backlog, OutputStream
from ddlrun.units import render_clock
from ddlrun.wire.loop import NEVER, Loop

STATUS_SECONDS = 1.0
TICK_SECONDS = 0.1
# A job may end by itself at about the time at which the readers of its output do.
PATIENCE_SECONDS = 5.0
# The source of the process manager's own output, beside ranks.
MANAGER = "manager"


class Output:
    """ddlrun's two streams, and the logs of a job."""

    def __init__(self, options: SupervisionOptions, ranks: int, files: RunDir, loop: Loop) -> None:
        self._loop = loop
        self._status = ""
        self._gone_at: float | None = None
        """The time at which the readers of both streams were found to be gone."""
        self._streams = (
            OutputStream(1, Backlog(f"{files.path}/stdout.unread"), colour=options.colour and os.isatty(1)),
            OutputStream(2, Backlog(f"{files.path}/stderr.unread"), colour=options.colour and os.isatty(2)),
        )
        if os.path.sameopenfile(1, 2):  # a line that is unfinished in one of them is unfinished in the other
            self._streams[1].lines = self._streams[0].lines
        style = options.style
        self._open_files = OpenFiles(most_open_files(ranks), self.tell)
        self._log = JobLog(files, tag_switches(style, ranks), ranks, self._open_files)
        self.ranks = RankOutput(
            style,
            self._streams,
            ranks=ranks,
            log=self._log,
            files=None if style.folder is None else RankFiles(style.folder, ranks, self._open_files),
            before=self._clear_status,
        )
        self._messages = MpirunMessages()
        self._status_at = self._tick_at = 0.0
        self._log.open()
        for stream in self._streams:
            stream.join(loop)

    @property
    def waiting(self) -> bool:
        """Whether output waits for a slow terminal or pipe."""
        return any(stream.waiting for stream in self._streams)

    @property
    def full(self) -> bool:
        """Whether so much output waits that no more should be read."""
        return any(stream.waiting > MOST_WAITING for stream in self._streams)

    def tell(self, text: str) -> None:
        """Print a message of ddlrun's, in lines of its own."""
        self._clear_status()
        block = b"".join(f"ddlrun: {line}\n".encode() for line in text.splitlines())
        self._log.tell(block)
        self._streams[1].write(self._streams[1].lines.end_line() + block)

    def write_manager(self, stream: int, chunk: bytes, *, visible: bool) -> None:
        """Log the process manager's own output, and print it without its harmless lines.

        What is not `visible` is not printed, except for messages of the ranks' MPI, at the end.
        """
        self._log.write_manager(chunk)
        self._messages.add(chunk, printed=visible)
        if visible:
            self._clear_status()
            console = self._streams[stream]
            console.write(console.lines.join(MANAGER, re.sub(HARMLESS, b"", chunk), b""))

    def tick(self, now: float, *, reading: bool) -> float:
        """Print parts of lines that have waited long enough for their end; return the time of the next call.

        All that was logged before is visible then to who reads the logs.
        While the ranks' output is not read, the ends of lines cannot arrive.
        """
        due = self._tick_at  # output since the last tick may have to wait
        if not reading or self.waiting:
            self.ranks.hold()
            due = NEVER
        elif now >= self._tick_at:
            self._tick_at = now + TICK_SECONDS
            due = max(self._tick_at, self.ranks.tick())
        self._log.flush()
        return due if self._gone_at is None else min(due, self._gone_at + PATIENCE_SECONDS)

    def failure(self, now: float) -> EndReason | None:
        """Return the reason to end the job if a stream cannot be written any more, or both have lost their readers.

        A lost reader of one stream, as after `| head`, matters only at the next write to it.
        """
        for stream, name in zip(self._streams, ("standard output", "standard error"), strict=True):
            if stream.closed and stream.error is not None:
                return EndCause.FAILED_STREAM.reason(stream=name, error=stream.error)
            if stream.closed:
                return EndCause.UNREAD_STREAM.reason(stream=name, signal=signal.SIGPIPE)
        if self._gone_at is None and all(stream.reader_gone for stream in self._streams):
            self._gone_at = now
        ended = self._gone_at is not None and now >= self._gone_at + PATIENCE_SECONDS
        return EndCause.ENDED_SESSION.reason(signal=signal.SIGPIPE) if ended else None

    def draw_status(self, now: float, status: Callable[[], str]) -> None:
        """Draw the status line again once per second, unless a line is unfinished or the terminal is the shell's."""
        if now <= self._status_at + STATUS_SECONDS:
            return
        self._status_at = now
        if self.waiting or any(stream.lines.inside_a_line for stream in self._streams) or in_background():
            return
        self._status = status()[: terminal_size().columns - 1]
        self._streams[1].write(f"\r\x1b[K{self._status}".encode())

    def finish(self, seconds: float, interrupted: Callable[[], Collection[int]], *, failed: bool) -> int:
        """Write what is left, and close everything; return the number of bytes of output that were not printed.

        Slow readers have some seconds, or until `interrupted` returns signals. A report follows if the job has failed.
        """
        self._clear_status()
        self._streams[1].write(self._streams[1].lines.join(MANAGER, self._messages.from_ranks(), b""))
        if failed:
            self._streams[1].write(self._streams[1].lines.end_line())
        until = time.monotonic() + seconds
        while self.waiting and time.monotonic() < until and not interrupted():
            self._loop.wait(TICK_SECONDS)
        self._log.flush()
        self._open_files.close_all()
        for stream in self._streams:
            stream.close()
        return sum(stream.unwritten for stream in self._streams)

    def _clear_status(self) -> None:
        if self._status:
            self._streams[1].write(b"\r\x1b[K")
            self._status = ""


def in_background() -> bool:
    """Return True if the terminal at standard error is in use by another job of the shell, or by the shell itself."""
    try:
        return os.tcgetpgrp(2) != os.getpgrp()
    except OSError:  # it is not the one that controls ddlrun
        return False


def status_line(*, seconds: float, running: int, ranks: int, silent: float, stalled: Sequence[int]) -> str:
    """Render the state of a job in a line, by the seconds since its start and since its last output.

    >>> status_line(seconds=3725.5, running=7, ranks=8, silent=61.2, stalled=[3])
    'ddlrun 1:02:05 | 7 of 8 ranks | last output 61 s ago | silent: 3'
    """
    line = f"ddlrun {render_clock(seconds)} | {running} of {ranks} ranks | last output {silent:.0f} s ago"
    return f"{line} | silent: {','.join(map(str, stalled[:8]))}" if stalled else line
