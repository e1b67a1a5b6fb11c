"""The meeting point of the PMI-1 servers of all hosts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class PmiRoot:
    """A barrier of hosts that gives each the values of all."""

    def __init__(self, hosts: Iterable[int]) -> None:
        """Create a root for the hosts of these numbers."""
        self._hosts = tuple(hosts)
        self._arrived: dict[int, bytes] = {}

    @property
    def waiting(self) -> bool:
        """Whether the ranks of a host wait for those of others."""
        return bool(self._arrived)

    def on_message(self, host: int, message: bytes) -> bytes | None:
        """Take a server's message; return that to all servers, or None until all have met."""
        self._arrived[host] = message
        if len(self._arrived) < len(self._hosts):
            return None
        values = b"".join(self._arrived[number] for number in self._hosts)
        self._arrived.clear()
        return values
