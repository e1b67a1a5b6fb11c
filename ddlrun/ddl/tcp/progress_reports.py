"""Reports between endpoints: the number of collectives that a rank has begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlrun.ddl.tcp.protocol import REPLY

if TYPE_CHECKING:
    from ddlrun.ddl.tcp.connection import PeerConnection


class ProgressReports:
    """The progress of this rank, and that of the others as far as they have reported it."""

    def __init__(self) -> None:
        self.own = 0
        """The number of collectives that this rank has begun."""
        self.of: dict[int, int] = {}
        """The last report of each other rank."""

    def forget_below(self, number: int) -> None:
        """Forget the reports of ranks that had begun fewer collectives, which may be outdated."""
        self.of = {peer: begun for peer, begun in self.of.items() if begun >= number}

    def reply(self, connection: PeerConnection, number: int) -> None:
        """Take the report of a peer, and reply to it."""
        self.note(connection, number)
        connection.send_number(REPLY, self.own)

    def note(self, connection: PeerConnection, number: int) -> None:
        """Take the report of a peer."""
        self.of[connection.peer] = number
