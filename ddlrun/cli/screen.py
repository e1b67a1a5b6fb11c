"""The screen of ddlrun top: the samples of a run, as they arrive."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader
from ddlrun.metrics.top_table import COLUMNS, render_top
from ddlrun.runs.history import may_run, read_past_run

REFRESH_SECONDS = 1.0
MOST_KEYS = 64
# q, Escape, Ctrl-D, and the end of the terminal.
QUIT = (b"q", b"\x1b", b"\x04", b"")
# Lines that are not for ranks: those above and below them.
OTHER_LINES = 14
# Of a terminal that does not know its size, such as a serial console.
DEFAULT_LINES = 24
BEGIN, END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def show_samples(folder: str, history: History, reader: MetricsReader) -> None:
    """Show the samples as they arrive, until the run or the user ends this."""
    sys.stdout.write(BEGIN)
    try:
        with _keys() as wait_for_q:
            while True:
                columns, rows = os.get_terminal_size(1)
                most = max(1, (rows or DEFAULT_LINES) - OTHER_LINES)
                lines = render_samples(folder, history, most, columns or COLUMNS)
                shown = [line + REST_OF_LINE for line in lines[: (rows or DEFAULT_LINES) - 1]]
                sys.stdout.write(HOME + "\n".join(shown) + REST_OF_SCREEN)
                sys.stdout.flush()
                if not may_run(folder) or wait_for_q():
                    return
                history.add(reader.read())
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(END)
        sys.stdout.flush()


def _wait() -> bool:
    time.sleep(REFRESH_SECONDS)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """Provide a function that waits for the next refresh, or returns True at once when the user types q."""
    if not os.isatty(0) or os.tcgetpgrp(0) != os.getpgrp():  # in the background, it would be stopped
        yield _wait
        return

    def wait_for_q() -> bool:
        ready, _, _ = select.select([0], [], [], REFRESH_SECONDS)  # one descriptor, and nothing else to wait for
        return bool(ready) and os.read(0, MOST_KEYS).lower() in QUIT

    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        yield wait_for_q
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def render_samples(folder: str, history: History, most_rows: int | None = None, columns: int = COLUMNS) -> list[str]:
    """Return the lines to show of a run."""
    past = read_past_run(folder)
    title = f"{os.path.basename(folder)}: starting" if past is None else f"{past.run.run}: {past.state.value}"
    return render_top(title, None if past is None else past.run.started, history, most_rows, columns)
