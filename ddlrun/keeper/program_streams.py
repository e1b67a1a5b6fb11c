"""The standard streams of a rank's program: pipes or a pseudo terminal, and the keeper's ends of them."""

from __future__ import annotations

import os
import sys

from ddlrun.keeper import protocol, record
from ddlrun.keeper.task import Task
from ddlrun.wire.loop import WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.shipped import OwnPaths
    from ddlrun.wire.loop import Loop

VARIABLE = "DDLRUN_INPUT"
"""The variable `RANK MODE ROWS COLUMNS`: the rank whose standard input is ddlrun's, and the size of the terminal."""
PIPE = "pipe"
TERMINAL = "terminal"
DEBUGGER = "debugger"
"""The modes: a pipe; a pseudo terminal, for standard output and error too; the same with a debugger in it."""
# The variable that makes breakpoint() do nothing if it is 0.
BREAKPOINT = "PYTHONBREAKPOINT"
# Ctrl-D, which ends the input of a program that reads lines.
END_OF_TRANSMISSION = b"\x04"
CHUNK = 1 << 16
TAIL = 16 << 10


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
        self.on_ready(WRITE)

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

    def on_ready(self, _events: int) -> None:
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


def _take_terminal() -> None:
    """Make the terminal of standard input that of this process, in a session of its own."""
    import fcntl  # noqa: PLC0415 - for terminals alone
    import termios  # noqa: PLC0415

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class OutputPipe(Task):
    """The pipe or terminal from which a keeper reads output."""

    _connection: LauncherConnection

    def __init__(self, fd: int, kind: bytes, stdin: ProgramInput | None = None) -> None:
        """Take over a descriptor.

        Args:
            fd: The descriptor.
            kind: The kind of the messages with the output.
            stdin: The input of the same terminal; None: it is a pipe.
        """
        os.set_blocking(fd, False)
        self.fd, self.kind, self._stdin = fd, kind, stdin
        self.tail = b""
        """The last output."""
        self.own_paths: OwnPaths | None = None
        """Replaces the paths of shipped files by those that the user knows; None: there are none."""

    def begin(self, loop: Loop, connection: LauncherConnection) -> None:
        """Pass output on over a connection."""
        self._connection = connection
        self.join(loop)

    def on_ready(self, _events: int) -> None:
        """Pass on what the pipe holds."""
        self._pass_on()

    def go_on(self) -> None:
        """Read output again after a pause."""
        if self.loop is not None:
            self.join(self.loop)

    def drain(self) -> None:
        """Pass on everything, as no process is left that could write more, and close the pipe."""
        while self._pass_on():
            pass
        self.close()

    def _pass_on(self) -> bool:
        """Send on what the pipe holds, and pause until that is sent; return False if it holds nothing."""
        data = self._read() if self.fd >= 0 else b""
        if data:
            sent = self._connection.send(self.kind, data, self.go_on)
            if self.loop is not None and self._connection.open and not sent:
                self.loop.forget(self.fd)
            if self._stdin is not None:
                self._stdin.end_again()
        return data != b""

    def _read(self) -> bytes:
        """Return the output that the pipe holds, empty if there is none; close the pipe at its end."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        ended = not data
        if self.own_paths is not None:
            data = self.own_paths.restore(data)
        if ended:
            self.close()
        elif not data:  # all of it was held back
            return self._read()
        self.tail = (data if len(data) >= TAIL else self.tail + data)[-TAIL:]
        return data


@record
class ProgramStreams:
    """Pipes or a pseudo terminal between a program and its keeper."""

    outputs: Sequence[OutputPipe] = ()
    """The pipes from which the keeper reads."""
    ends: tuple[int | None, ...] = ()
    """The program's standard input, output and error; None: the input is that of the keeper."""
    input: ProgramInput | None = None
    """The keeper's end of the program's standard input; None: that is the keeper's."""

    @property
    def terminal(self) -> bool:
        """Whether the streams are a pseudo terminal."""
        return self.input is not None and self.input.terminal

    def attach(self) -> None:
        """Make the streams those of this process, a new child of the keeper."""
        for number, fd in enumerate(self.ends):
            if fd is not None:
                os.dup2(fd, number)
        if self.terminal:
            _take_terminal()
        else:
            os.setpgid(0, 0)  # mpirun signals the groups of its children; for the program the keeper does that

    def close_ends(self) -> None:
        """Close the program's ends, in the keeper."""
        for fd in {fd for fd in self.ends if fd is not None}:
            os.close(fd)


def open_streams(request: InputRequest | None) -> ProgramStreams:
    """Create the streams of a program whose standard input is the keeper's, or as requested."""
    if request is not None and request.terminal:
        return _open_terminal(request)
    out, err = os.pipe(), os.pipe()
    outputs = (OutputPipe(out[0], protocol.OUT), OutputPipe(err[0], protocol.ERR))
    if request is None:
        return ProgramStreams(outputs=outputs, ends=(None, out[1], err[1]))
    read_end, write_end = os.pipe()
    stdin = ProgramInput(write_end, terminal=False)
    return ProgramStreams(outputs=outputs, ends=(read_end, out[1], err[1]), input=stdin)


def _open_terminal(request: InputRequest) -> ProgramStreams:
    keeper_end, program_end = os.openpty()
    set_size(keeper_end, request.rows, request.columns)
    stdin = ProgramInput(os.dup(keeper_end), terminal=True)
    output = OutputPipe(keeper_end, protocol.OUT, stdin)
    return ProgramStreams(outputs=(output,), ends=(program_end, program_end, program_end), input=stdin)
