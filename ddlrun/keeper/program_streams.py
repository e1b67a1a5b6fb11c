"""The three standard streams of a rank's program, and the keeper's ends of them."""

from __future__ import annotations

import os

from ddlrun.keeper import protocol
from ddlrun.keeper.program_input import ProgramInput, set_size, take_terminal
from ddlrun.keeper.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.program_input import InputRequest
    from ddlrun.keeper.shipped import OwnPaths
    from ddlrun.wire.loop import Loop

CHUNK = 1 << 16
TAIL = 16 << 10


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


class ProgramStreams:
    """Pipes or a pseudo terminal between a program and its keeper."""

    def __init__(
        self, outputs: Sequence[OutputPipe], ends: tuple[int | None, int, int], stdin: ProgramInput | None = None
    ) -> None:
        """Keep the ends.

        Args:
            outputs: The pipes from which the keeper reads.
            ends: The program's standard input, output and error; None: the input is that of the keeper.
            stdin: The keeper's end of the program's standard input; None: that is the keeper's.
        """
        self.outputs, self.ends, self.input = outputs, ends, stdin
        self.terminal = stdin is not None and stdin.terminal
        """Whether the streams are a pseudo terminal."""

    def attach(self) -> None:
        """Make the streams those of this process, a new child of the keeper."""
        if self.terminal:
            take_terminal(self.ends[1])
        else:
            os.setpgid(0, 0)  # mpirun signals the groups of its children; for the program the keeper does that
        for number, fd in enumerate(self.ends):
            if fd is not None:
                os.dup2(fd, number)

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
        return ProgramStreams(outputs, (None, out[1], err[1]))
    read_end, write_end = os.pipe()
    return ProgramStreams(outputs, (read_end, out[1], err[1]), ProgramInput(write_end, terminal=False))


def _open_terminal(request: InputRequest) -> ProgramStreams:
    keeper_end, program_end = os.openpty()
    set_size(keeper_end, request.rows, request.columns)
    stdin = ProgramInput(os.dup(keeper_end), terminal=True)
    output = OutputPipe(keeper_end, protocol.OUT, stdin)
    return ProgramStreams((output,), (program_end, program_end, program_end), stdin)
