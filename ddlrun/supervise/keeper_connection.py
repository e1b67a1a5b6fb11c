"""One keeper's connection: its state, and what its keeper may send in it."""

import _socket  # socket itself takes 6 ms to import
import enum
import fcntl
import sys
import termios
from collections.abc import Iterator
from typing import NamedTuple

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.wire.connection import Connection
from ddlrun.wire.frames import Agreement
from ddlrun.wording import printable

HELLO_WORDS = 4
# Messages of a keeper whose program has ended may cross ddlrun's own, or come from processes that cannot be ended.
AFTER_THE_END = frozenset({
    protocol.HEARTBEAT, protocol.OUT, protocol.ERR, protocol.SNAPSHOT, protocol.SIGNALLED, protocol.LOST,
    protocol.ALTERED, protocol.NOTE,
})  # fmt: skip


class PeerState(enum.Enum):
    """A state of a connection; each is left for the next one."""

    PROVEN = "has proved that it knows the secret"
    RUNNING = "has named its rank, whose program runs"
    ENDED = "has reported the end of its program"
    WATCHING = "is the process that watches the process manager's daemon, after its keeper has left"


ALLOWED = {
    PeerState.PROVEN: frozenset((protocol.HEARTBEAT, protocol.HELLO, protocol.ALTERED)),
    PeerState.RUNNING: frozenset(protocol.FROM_KEEPER) - {protocol.HELLO, protocol.HANDOVER},
    PeerState.ENDED: AFTER_THE_END | {protocol.HANDOVER},
    PeerState.WATCHING: AFTER_THE_END - {protocol.OUT, protocol.ERR},
}
"""State -> the kinds of messages that a keeper may send in it."""


class KeeperConnection(Connection):
    """A connection from a keeper that has proved to know the secret."""

    def __init__(self, link: _socket.socket, agreement: Agreement, now: float) -> None:
        super().__init__(link)
        self.begin(agreement, sent=protocol.TO_KEEPER, received=protocol.FROM_KEEPER)
        self.state = PeerState.PROVEN
        self.rank: int | None = None
        """None until it is RUNNING."""
        self.greeted_rank = protocol.parse_claim(agreement.claim)
        """The rank of its greeting."""
        self.host = "?"
        self.local_rank = -1
        self.since = self.heard_at = now
        self.farewell = ""
        """The keeper's reason for closing the connection, if it had one."""
        self.error: int | None = None
        """The error number of a connection that broke."""

    @property
    def label(self) -> str:
        """The rank and its host, as far as they are known."""
        return "a keeper" if self.rank is None else f"rank {self.rank} on {self.host}"

    @property
    def running(self) -> bool:
        """Whether its rank's program runs."""
        return self.state is PeerState.RUNNING

    @property
    def watching(self) -> bool:
        """Whether it is no longer a keeper, but watches the process manager's daemon."""
        return self.state is PeerState.WATCHING

    @property
    def acknowledged(self) -> bool:
        """Whether the host's kernel has acknowledged everything that was sent, for which it needs no keeper."""
        waiting = fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ in tcp(7)
        return not self.unsent and not int.from_bytes(waiting, sys.byteorder)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add bytes; yield the messages that are now complete. Raises FrameError for one that must not come now."""
        for kind, text in self.decoder.feed(data):
            if kind not in ALLOWED[self.state]:
                raise ProtocolError(f"it sent a message of kind {kind!r}, which it must not send now")
            yield kind, text

    def introduce(self, hello: "Hello") -> None:
        """Set rank, host and local rank."""
        self.rank, self.host, self.local_rank = hello.rank, hello.host, hello.local_rank
        self.state = PeerState.RUNNING


def decode_text(text: bytes) -> str:
    """Return the text of a message as a terminal can show it."""
    return printable(text.decode(errors="replace"))


class Hello(NamedTuple):
    """The introduction of a keeper."""

    rank: int
    host: str
    local_rank: int

    @classmethod
    def parse(cls, text: bytes, ranks: int) -> "Hello":
        """Parse the text of a HELLO. Raises ProtocolError where it cannot be read, or the job has no such rank."""
        words = text.decode(errors="replace").split("\t")
        if len(words) != HELLO_WORDS:
            raise ProtocolError("its introduction cannot be read")
        rank, local_rank = (protocol.parse_number(word, ranks - 1) for word in (words[0], words[2]))
        return cls(rank, " ".join(printable(words[1]).split()), local_rank)
