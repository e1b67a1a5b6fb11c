"""The three standard streams of a rank's program, and the keeper's ends of them."""

from __future__ import annotations

import os

from ddlrun.keeper import protocol
from ddlrun.keeper.program_input import ProgramInput, set_size, take_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.program_input import InputRequest


class ProgramStreams:
    """Pipes or a pseudo terminal between a program and its keeper."""

    def __init__(self, pipes: dict[int, bytes], ends: tuple[int | None, int, int]) -> None:
        """Keep the ends.

        Args:
            pipes: Descriptor from which the keeper reads -> the kind of message for the data.
            ends: The program's standard input, output and error; None: the input is that of the keeper.
        """
        self.pipes = pipes
        self.ends = ends
        self.input: ProgramInput | None = None
        """The keeper's end of the program's standard input."""
        self.terminal = False
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
    for fd in (out[0], err[0]):
        os.set_blocking(fd, False)
    pipes = {out[0]: protocol.OUT, err[0]: protocol.ERR}
    if request is None:
        return ProgramStreams(pipes, (None, out[1], err[1]))
    read_end, write_end = os.pipe()
    streams = ProgramStreams(pipes, (read_end, out[1], err[1]))
    streams.input = ProgramInput(write_end, terminal=False)
    return streams


def _open_terminal(request: InputRequest) -> ProgramStreams:
    keeper_end, program_end = os.openpty()
    os.set_blocking(keeper_end, False)
    set_size(keeper_end, request.rows, request.columns)
    streams = ProgramStreams({keeper_end: protocol.OUT}, (program_end, program_end, program_end))
    streams.input = ProgramInput(os.dup(keeper_end), terminal=True)
    streams.terminal = True
    return streams
