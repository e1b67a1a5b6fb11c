"""The ranks' lines on the console: chosen ranks, tags, equal lines folded, tracebacks held back."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.supervision import OutputStyle
from ddlrun.plan.tracebacks import last_lines, plain_lines
from ddlrun.runs.output_lines import RankTags
from ddlrun.supervise.folding import LineFolder
from ddlrun.supervise.held_tracebacks import HeldTracebacks
from ddlrun.supervise.streams import OutputStream

STDERR = 1
# The lines of standard error on which a reader surely looks when the report of the job follows.
LINES_IN_VIEW = 24
# The last lines of a failure that need no repetition if they are in view, such as the end of a long traceback.
ENOUGH_LINES = 16


class ConsoleLines:
    """The lines of all ranks on their way to ddlrun's standard output and standard error."""

    def __init__(
        self, style: OutputStyle, tags: RankTags, streams: Sequence[OutputStream], before: Callable[[], None]
    ) -> None:
        """Print lines as an OutputStyle says; `before` is called before anything is printed."""
        self._style, self._tags, self._streams, self._before = style, tags, streams, before
        self._tracebacks = HeldTracebacks()
        ranks = tags.ranks if style.ranks is None else len(style.ranks)
        self._folder = LineFolder(ranks) if style.fold else None
        self._recent: deque[tuple[tuple[int, ...], bytes]] = deque(maxlen=LINES_IN_VIEW)
        """Ranks, and lines of their standard error."""

    def add(self, rank: int, stream: int, lines: bytes) -> None:
        """Print a rank's lines; those that are held back, later."""
        if self._style.ranks is not None and rank not in self._style.ranks:
            return
        if stream == STDERR:
            self._print(rank, stream, self._tracebacks.add(rank, lines))
        else:
            self._print(rank, STDERR, self._tracebacks.go_on(rank))
            self._print(rank, stream, lines)

    def add_raw(self, rank: int, stream: int, data: bytes) -> None:
        """Print the output of a rank with a terminal, as it comes."""
        self._before()
        console = self._streams[stream]
        console.write(console.lines.join((rank, stream), data, b"", raw=True))

    def fail(self, rank: int) -> None:
        """Hold back the traceback of a rank that has failed up to the end of the job."""
        self._tracebacks.keep(rank)

    def end(self, rank: int) -> None:
        """Print the traceback of a rank that has ended without a failure."""
        self._print(rank, STDERR, self._tracebacks.release(rank))

    def conclude(self, outcome: Outcome) -> bool:
        """Print what was held back and no report covers; return True if the end of the first failure is in view."""
        for rank, text in self._tracebacks.conclude(outcome.root, outcome.ends):
            self._print(rank, STDERR, text)
        self._print_folded(everything=True)
        return outcome.root is not None and self._is_in_view(outcome.root)

    def tick(self) -> float | None:
        """Print lines that have waited long enough; return the seconds until the next one has, None: no line waits."""
        for rank in self._tracebacks.due():
            self._print(rank, STDERR, self._tracebacks.release(rank))
        self._print_folded()
        delays = [self._tracebacks.delay(), None if self._folder is None else self._folder.delay()]
        return min((delay for delay in delays if delay is not None), default=None)

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
