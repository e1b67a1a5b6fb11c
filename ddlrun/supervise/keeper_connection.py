"""One keeper's connection: its state, and what is still to be sent."""

import _socket  # socket itself takes 6 ms to import
import enum
import fcntl
import sys
import termios
from typing import NamedTuple

from ddlrun.rank import protocol


class PeerState(enum.Enum):
    """A state of a connection; each is left for the next one."""

    STRANGER = "has not sent the token"
    WELCOMED = "has sent the token"
    RUNNING = "has named its rank, whose program runs"
    ENDED = "has reported the end of its program"


class KeeperConnection:
    """A connection from a keeper, or from a stranger."""

    def __init__(self, link: _socket.socket, now: float) -> None:
        self.link = link
        self.state = PeerState.STRANGER
        self.rank: int | None = None
        """None until it is RUNNING."""
        self.host = "?"
        self.local_rank = -1
        self.since = self.heard_at = now
        self.received = 0
        """The number of bytes received."""
        self.unpacker = protocol.Unpacker()
        self.unsent = bytearray()

    @property
    def trusted(self) -> bool:
        """Whether it has sent the token."""
        return self.state is not PeerState.STRANGER

    @property
    def running(self) -> bool:
        """Whether its rank's program runs."""
        return self.state is PeerState.RUNNING

    @property
    def acknowledged(self) -> bool:
        """Whether the host's kernel has acknowledged everything that was sent, for which it needs no keeper."""
        waiting = fcntl.ioctl(self.link.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ in tcp(7)
        return not self.unsent and not int.from_bytes(waiting, sys.byteorder)

    def introduce(self, text: bytes) -> int:
        """Set rank, host and local rank from the text of a HELLO; return the rank."""
        rank, self.host, local_rank, _ = text.decode(errors="replace").split("\t")
        self.rank, self.local_rank = int(rank), int(local_rank)
        self.state = PeerState.RUNNING
        return self.rank


class SilentKeeper(NamedTuple):
    """A keeper that was dropped because it sent nothing for too long."""

    peer: KeeperConnection
    reachable: bool
    """Whether its host had acknowledged ddlrun's heartbeats."""
