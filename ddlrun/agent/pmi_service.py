"""The PMI server of an agent's host, and the addresses of its messages from and to the root."""

from __future__ import annotations

import os

from ddlrun.agent.frames import pack_words
from ddlrun.agent.messages import complain
from ddlrun.agent.pmi import PmiServer
from ddlrun.agent.pmi_mapping import process_mapping
from ddlrun.agent.shared_memory import mpich_file
from ddlrun.rank.host_position import all_places
from ddlrun.rank.settings import SHARED_MEMORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.agent.descriptors import Descriptors
    from ddlrun.agent.job import AgentJob, HostRanks
    from ddlrun.agent.pmi import Abort


class PmiService:
    """The PMI server of a host with ranks."""

    def __init__(
        self,
        job: AgentJob,
        own: HostRanks,
        *,
        descriptors: Descriptors,
        on_abort: Callable[[Abort], None],
        on_close: Callable[[int], None],
        send_up: Callable[[bytes], None],
    ) -> None:
        """Create the server, without any connection.

        Args:
            job: The job.
            own: This host.
            descriptors: The descriptors that the agent waits for.
            on_abort: Takes a rank's call of MPI_Abort.
            on_close: Takes the rank whose connection has ended.
            send_up: Takes a message to the root.
        """
        self._descriptors, self._send_up = descriptors, send_up
        self._on_abort, self._on_close = on_abort, on_close
        places = all_places(job.size, os.environ["DDLRUN_TOPOLOGY"], os.environ["DDLRUN_RANK_ORDER"])
        hosts = [host for host, _ in places]
        self._number = own.number
        self._server = PmiServer(own.ranks, job.size, job.name, process_mapping(hosts))
        self._variables = {SHARED_MEMORY: mpich_file(job.name, list(dict.fromkeys(hosts)).index(own.number))}

    def connect(self, rank: int) -> tuple[int, int | None, dict[str, str]]:
        """Return a rank's connection, the end that its program inherits and the other, and variables for its keeper."""
        link = self._server.open(rank)
        return link, self._server.descriptor(rank), {**self._server.variables(rank, link), **self._variables}

    def watch(self) -> None:
        """Watch the connections of the ranks."""
        for fd in self._server.readable():
            self._descriptors.watch(fd, self._reader(fd))

    def deliver(self, message: bytes) -> None:
        """Give a message of the root to this host's server."""
        self._server.on_message(message)

    def is_unfinished(self, rank: int) -> bool:
        """Return True for a rank that has ended after MPI_Init, but without MPI_Finalize."""
        fd = self._server.descriptor(rank)
        if fd is not None:
            self._on_request(fd)  # its last one
        return rank in self._server.in_mpi

    def _reader(self, fd: int) -> Callable[[], None]:
        return lambda: self._on_request(fd)

    def _on_request(self, fd: int) -> None:
        """Answer what a rank has sent, and pass on what follows from it."""
        goes_on = self._server.on_readable(fd)
        for note in self._server.take_notes():
            complain(note)
        for abort in self._server.take_aborts():
            self._on_abort(abort)
        if not goes_on:
            self._descriptors.forget(fd)
            self._on_close(self._server.close(fd))
        for message in self._server.take_messages():
            self._send_up(pack_words([b"%d" % self._number, message]))
