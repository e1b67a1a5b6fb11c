"""ddlrun's standard input, passed on to a rank's keeper, also as the key strokes of a terminal."""

import os
import termios
from collections.abc import Callable

from ddlrun.keeper import protocol
from ddlrun.keeper.program_streams import VARIABLE
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.plan.supervision import RankInput
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.wire.loop import READ, Loop

STDIN = 0
CHUNK = 1 << 16
# Ctrl-\, which at a terminal that belongs to a rank ends the job; all other keys are the rank's.
QUIT_KEY = b"\x1c"
DEFAULT_SIZE = os.terminal_size((80, 24))


class InputForwarder:
    """Standard input on its way to one rank: read when its program has taken everything before."""

    def __init__(self, chosen: RankInput | None, loop: Loop, on_quit: Callable[[], None]) -> None:
        """Read standard input for a rank, if one is chosen; `on_quit` is called for QUIT_KEY."""
        self._chosen, self._loop, self._on_quit = chosen, loop, on_quit
        self._terminal = chosen is not None and chosen.terminal and os.isatty(STDIN)
        self._peer: KeeperConnection | None = None
        """The keeper that wants input."""
        self._reader: KeeperConnection | None = None
        """The keeper that has wanted input before, to the end of its rank."""
        self._size = terminal_size()
        self._attributes: list[int | list[bytes | int]] | None = None
        """The attributes of the terminal before its keys became the rank's."""

    def request(self, peer: KeeperConnection) -> None:
        """Send the rank the next data. Raises ProtocolError if standard input is not this rank's."""
        if self._chosen is None or peer.rank != self._chosen.rank:
            raise ProtocolError("it wants standard input, which is not its rank's")
        if self._peer is not None:
            return
        self._peer = self._reader = peer
        if self._terminal and self._attributes is None:
            self._attributes = take_keys()
        self.resize()
        try:
            self._loop.watch(STDIN, READ, lambda _: self._forward(peer))
        except OSError:  # it is closed
            self._send(peer, b"")

    def resize(self) -> None:
        """Pass on the size of the terminal if it has changed."""
        size = terminal_size()
        if self._terminal and self._reader is not None and size != self._size:
            self._size = size
            self._reader.send(protocol.RESIZE, f"{size.lines} {size.columns}".encode())

    def end(self, rank: int) -> None:
        """Give the terminal back if this rank has ended, which had it."""
        if self._chosen is not None and rank == self._chosen.rank:
            self.close()

    def close(self) -> None:
        """Read nothing more, and give the terminal back."""
        if self._attributes is not None:
            termios.tcsetattr(STDIN, termios.TCSADRAIN, self._attributes)
            self._attributes = None
        self._reader = self._peer = None
        self._loop.forget(STDIN)

    def _forward(self, peer: KeeperConnection) -> None:
        self._loop.forget(STDIN)
        try:
            data = os.read(STDIN, CHUNK)
        except OSError:  # the terminal is gone
            data = b""
        if self._terminal and QUIT_KEY in data:
            self.close()
            self._on_quit()
        else:
            self._send(peer, data)

    def _send(self, peer: KeeperConnection, data: bytes) -> None:
        self._peer = None
        peer.send(protocol.INPUT, data)


def input_variable(chosen: RankInput | None) -> dict[str, str]:
    """Return the variable that names the rank whose standard input is ddlrun's."""
    if chosen is None:
        return {}
    size = terminal_size()
    return {VARIABLE: f"{chosen.rank} {chosen.mode.value} {size.lines} {size.columns}"}


def terminal_size() -> os.terminal_size:
    """Return the size of the user's terminal, which need not be known."""
    for fd in (0, 1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        return size if size.columns and size.lines else DEFAULT_SIZE
    return DEFAULT_SIZE


def take_keys() -> list[int | list[bytes | int]]:
    """Read the terminal key by key, without echo and signals; return its attributes before."""
    before = termios.tcgetattr(STDIN)
    attributes = termios.tcgetattr(STDIN)
    attributes[0] &= ~(termios.ICRNL | termios.IXON)
    attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
    termios.tcsetattr(STDIN, termios.TCSADRAIN, attributes)
    return before
