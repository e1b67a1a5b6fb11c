"""Standard input of a rank's program that comes from ddlrun, through a pipe or a pseudo terminal."""

from __future__ import annotations

import os
import sys

from ddlrun.keeper.record import record
from ddlrun.keeper.task import Task
from ddlrun.wire.loop import WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.wire.loop import Loop

VARIABLE = "DDLRUN_INPUT"
"""The variable `RANK MODE ROWS COLUMNS`: the rank whose standard input is ddlrun's, and the size of the terminal."""
PIPE, TERMINAL, DEBUGGER = "pipe", "terminal", "debugger"
"""The modes: a pipe; a pseudo terminal, for standard output and error too; the same with a debugger in it."""
# The variable that makes breakpoint() do nothing if it is 0.
BREAKPOINT = "PYTHONBREAKPOINT"
# Ctrl-D, which ends the input of a program that reads lines.
END_OF_TRANSMISSION = b"\x04"


@record
class InputRequest:
    """The mode of a rank's standard input, and the size of its terminal."""

    mode: str
    rows: int
    columns: int

    @property
    def terminal(self) -> bool:
        """Whether the program gets a pseudo terminal."""
        return self.mode != PIPE


def read_request(rank: int) -> InputRequest | None:
    """Return the request for a rank; None for a rank whose standard input does not come from ddlrun.

    While a rank is debugged, breakpoint() stops that rank alone, as the others have no terminal.
    """
    words = os.environ.pop(VARIABLE, "").split()
    if not words:
        return None
    if int(words[0]) == rank:
        if words[1] == DEBUGGER and os.environ.get(BREAKPOINT) == "0":
            del os.environ[BREAKPOINT]
        return InputRequest(mode=words[1], rows=int(words[2]), columns=int(words[3]))
    if words[1] == DEBUGGER:
        os.environ.setdefault(BREAKPOINT, "0")
    return None


class ProgramInput(Task):
    """The descriptor from which the program reads, and the data that it has not taken yet."""

    events = WRITE
    _on_taken: Callable[[], None]

    def __init__(self, fd: int, *, terminal: bool) -> None:
        """Take over a descriptor.

        Args:
            fd: The write end of a pipe, or the keeper's side of a pseudo terminal.
            terminal: Whether it is the latter.
        """
        self.fd, self.terminal = fd, terminal
        self.waiting = b""
        """The data that waits for the program."""
        self._ended = False
        os.set_blocking(fd, False)

    def begin(self, loop: Loop, on_taken: Callable[[], None]) -> None:
        """Call a function whenever the program has taken everything, and more data may follow."""
        self.loop, self._on_taken = loop, on_taken
        on_taken()

    def add(self, data: bytes) -> None:
        """Write data; empty data is the end of the input. What the program does not take now is written later."""
        self._ended = not data
        self.waiting += END_OF_TRANSMISSION if self._ended and self.terminal else data
        self._write()

    def on_ready(self, _events: int) -> None:
        """Write what waits."""
        self._write()

    def end_again(self) -> None:
        """End the input once more for a program that has printed and now reads single keys, as readline does.

        The end that was sent while the terminal still had lines is another character to it.
        """
        if self._ended and self.terminal and self.fd >= 0 and not self.waiting and _reads_keys(self.fd):
            self.add(b"")

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal, of which the kernel informs the program."""
        if self.terminal and self.fd >= 0:
            set_size(self.fd, rows, columns)

    def _write(self) -> None:
        """Write as much as the program takes now, and wait until it takes the rest."""
        try:
            while self.waiting:
                self.waiting = self.waiting[os.write(self.fd, self.waiting) :]
        except BlockingIOError:
            if self.loop is not None:
                self.join(self.loop)
            return
        except OSError:  # the program has closed its standard input
            self.waiting = b""
            self.close()
            return
        if self.loop is not None:
            self.loop.forget(self.fd)
        if not self._ended:
            self._on_taken()
        elif not self.terminal:
            self.close()


def _reads_keys(fd: int) -> bool:
    """Return True if a terminal passes on single keys, without an echo, which would be output again."""
    import termios  # noqa: PLC0415 - for terminals alone

    flags: int = termios.tcgetattr(fd)[3]
    return not flags & (termios.ICANON | termios.ECHO)


def set_size(fd: int, rows: int, columns: int) -> None:
    """Set the size of a terminal."""
    import fcntl  # noqa: PLC0415 - for terminals alone
    import termios  # noqa: PLC0415

    size = b"".join(number.to_bytes(2, sys.byteorder) for number in (rows, columns, 0, 0))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, size)


def take_terminal(fd: int) -> None:
    """Make a terminal that of this process, in a session of its own."""
    import fcntl  # noqa: PLC0415 - for terminals alone
    import termios  # noqa: PLC0415

    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
