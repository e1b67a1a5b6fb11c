"""The PMI server of a host and the root's part of it, and the addresses of the messages between them."""

from __future__ import annotations

import binascii
import os

from ddlrun.agent.frames import pack_words, unpack_words
from ddlrun.agent.pmi import PmiServer
from ddlrun.agent.pmi_mapping import process_mapping
from ddlrun.agent.pmi_root import PmiRoot
from ddlrun.rank.host_position import all_places
from ddlrun.rank.protocol import ADDRESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddlrun.agent.job import AgentJob, HostRanks


class PmiService:
    """The PMI server of an agent's host; the root merges what the servers of all hosts have."""

    def __init__(self, own: HostRanks | None, hosts: Sequence[HostRanks], job: AgentJob, *, root: bool) -> None:
        """Create the server of this host, without any connection.

        Args:
            own: This host; None if it has no ranks.
            hosts: The hosts whose agents are below this one, and this one.
            job: The job.
            root: Whether this is the root.
        """
        self._number = -1 if own is None else own.number
        self.server: PmiServer | None = None
        self._root: PmiRoot | None = None
        if own is not None:
            places = all_places(job.size, os.environ["DDLRUN_TOPOLOGY"], os.environ["DDLRUN_RANK_ORDER"])
            mapping = process_mapping([host for host, _ in places])
            self.server = PmiServer(own.ranks, job.size, _name_job(os.environ), mapping)
        if root:
            self._root = PmiRoot([host.number for host in hosts])

    def take_messages(self) -> Iterator[bytes]:
        """Yield the server's new messages to the root."""
        for message in [] if self.server is None else self.server.take_messages():
            yield pack_words([b"%d" % self._number, message])

    def merge(self, message: bytes) -> Iterator[bytes]:
        """Give a message of a server to the root; yield its messages to servers."""
        number, text = unpack_words(message)
        if self._root is not None:
            for host, reply in self._root.on_message(int(number), text):
                yield pack_words([b"%d" % host, reply])

    def deliver(self, message: bytes) -> bool:
        """Give a message of the root to this host's server; return False if it is for another host."""
        number, text = unpack_words(message)
        if self.server is None or int(number) != self._number:
            return False
        self.server.on_message(text)
        return True


def _name_job(environ: Mapping[str, str]) -> str:
    """Return a name for the job's key-value space, which all agents of this attempt, and no others, have."""
    names = (environ.get(name, "") for name in ("DDLRUN_RUN", ADDRESSES))
    return "-".join(("ddlrun", *(f"{binascii.crc32(name.encode(errors='surrogateescape')):08x}" for name in names)))
