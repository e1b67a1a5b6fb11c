"""The PMI server of an agent's host, and the addresses of its messages from and to the root.

The server is loaded when the first rank uses its connection: most programs use no MPI.
"""

from __future__ import annotations

import os

from ddlrun.agent.frames import pack_words
from ddlrun.agent.messages import complain
from ddlrun.agent.pmi_link import has_ended, open_link, rank_variables
from ddlrun.keeper.host_position import RankPositions

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from ddlrun.agent.descriptors import Descriptors
    from ddlrun.agent.job import AgentJob, HostRanks
    from ddlrun.agent.pmi import Abort, PmiServer


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
        on_unfinished: Callable[[int], None],
        send_up: Callable[[bytes], None],
    ) -> None:
        """Create the server, without any connection.

        Args:
            job: The job.
            own: This host.
            descriptors: The descriptors that the agent waits for.
            on_abort: Takes a rank's call of MPI_Abort.
            on_close: Takes the rank whose connection has ended.
            on_unfinished: Takes a rank that has ended, with exit code 0, while others are in MPI.
            send_up: Takes a message to the root.
        """
        self._descriptors, self._send_up = descriptors, send_up
        self._on_abort, self._on_close, self._on_unfinished = on_abort, on_close, on_unfinished
        self._ended: list[int] = []
        """The ranks that have ended with exit code 0."""
        self._hosts = [host for host, _ in RankPositions(os.environ).all()]
        self._job, self._own = job, own
        self._links: dict[int, _socket.socket] = {}
        """Descriptor -> the connection of a rank that has not used it."""
        self._ranks: dict[int, int] = {}
        """Descriptor -> rank, of these connections."""
        self._server: PmiServer | None = None

    def connect(self, rank: int) -> tuple[int, int, dict[str, str]]:
        """Return a rank's connection, the end that its program inherits and the other, and variables for its keeper."""
        link, fd = open_link()
        self._links[link.fileno()], self._ranks[link.fileno()] = link, rank
        return fd, link.fileno(), rank_variables(rank, fd, self._own.ranks, self._job.size)

    def watch(self) -> None:
        """Watch the connections of the ranks."""
        for fd in self._links:
            self._descriptors.watch(fd, self._reader(fd))

    def deliver(self, message: bytes) -> None:
        """Give a message of the root to this host's server."""
        self._serve().on_message(message)

    def on_end(self, rank: int) -> None:
        """Take the end of a rank, with exit code 0."""
        unused = (fd for fd, other in self._ranks.items() if other == rank)
        fd = next(unused, None) if self._server is None else self._server.descriptor(rank)
        if fd is not None:
            self._on_readable(fd)  # its last request
        self._ended.append(rank)
        if self._server is not None and rank in self._server.in_mpi:
            self._on_unfinished(rank)
        else:
            self._report_missing()

    def _report_missing(self) -> None:
        """Report a rank that has ended, and that others of this host need in MPI_Init or in a barrier."""
        server = self._server
        missing = next((rank for rank in self._ended if server is not None and server.lacks(rank)), None)
        if missing is not None:
            self._on_unfinished(missing)

    def _serve(self) -> PmiServer:
        """Return the server, which gets the connections of all ranks when the first one needs it."""
        if self._server is None:
            from ddlrun.agent.pmi import PmiServer  # noqa: PLC0415 - 2 ms, for programs with MPI alone
            from ddlrun.agent.pmi_mapping import process_mapping  # noqa: PLC0415 - the same

            job = self._job
            self._server = PmiServer(len(self._own.ranks), job.size, job.name, process_mapping(self._hosts))
            for fd, link in self._links.items():
                self._server.add(self._ranks[fd], link)
            self._links.clear()
            self._ranks.clear()
        return self._server

    def _reader(self, fd: int) -> Callable[[], None]:
        return lambda: self._on_readable(fd)

    def _on_readable(self, fd: int) -> None:
        """Answer a rank's request, or take the end of a connection that was not used."""
        ended = has_ended(self._links[fd]) if self._server is None else False
        if ended:
            self._descriptors.forget(fd)
            self._links.pop(fd).close()
            self._on_close(self._ranks.pop(fd))
        elif ended is not None:
            self._on_request(self._serve(), fd)

    def _on_request(self, server: PmiServer, fd: int) -> None:
        """Answer what a rank has sent, and pass on what follows from it."""
        goes_on = server.on_readable(fd)
        for note in server.take_notes():
            complain(note)
        for abort in server.take_aborts():
            self._on_abort(abort)
        if not goes_on:
            self._descriptors.forget(fd)
            self._on_close(server.close(fd))
        for message in server.take_messages():
            self._send_up(pack_words([b"%d" % self._own.number, message]))
        self._report_missing()
