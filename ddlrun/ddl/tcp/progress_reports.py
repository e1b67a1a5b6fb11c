"""Reports between endpoints: the number of collectives that a rank has begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlrun.ddl.tcp.connection import Connection

# The tags of messages between endpoints. Each carries the progress of its sender.
QUESTION, REPLY = 2, 3


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

    def ask(self, connection: Connection) -> None:
        """Report the progress to a peer, and request its own. Raises OSError if the connection is broken."""
        connection.send_control(QUESTION, self.own)

    def handle(self, connection: Connection) -> None:
        """Take the reports of a peer, and reply to its questions. Raises OSError if the connection is broken."""
        while connection.reports:
            tag, value = connection.reports.popleft()
            self.of[connection.peer] = value
            if tag == QUESTION:
                connection.send_control(REPLY, self.own)
