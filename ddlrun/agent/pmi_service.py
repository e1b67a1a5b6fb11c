"""The PMI connections of the ranks of a host, and the orders to end that follow from them.

The server is loaded when the first rank uses its connection: most programs use no MPI.
"""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os

from ddlrun.agent import protocol
from ddlrun.keeper.forks import complain
from ddlrun.keeper.host_position import RankPositions
from ddlrun.wire.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.agent.pmi import PmiServer
    from ddlrun.agent.protocol import AgentJob, HostRanks
    from ddlrun.wire.loop import Loop


class PmiService:
    """The PMI server of a host with ranks."""

    def __init__(self, job: AgentJob, own: HostRanks, loop: Loop, report: Callable[[bytes, bytes], None]) -> None:
        """Create the server, without any connection. `report` takes its messages to the root."""
        self._job, self._own, self._loop, self._report = job, own, loop, report
        self._links: dict[int, _socket.socket] = {}
        """Rank -> its connection."""
        self._orders: dict[int, int] = {}
        """Rank -> the write end of the pipe for the order to end as MPI_Abort asks."""
        self._ended: list[int] = []
        """The ranks that have ended with exit code 0."""
        self._server: PmiServer | None = None

    def connect(self, rank: int) -> tuple[int, int, int]:
        """Connect a rank; return the end of its program, that of the server, and the pipe of orders to its keeper."""
        link, fd = open_link()
        orders, self._orders[rank] = os.pipe()
        self._links[rank] = link
        self._loop.watch(link.fileno(), READ, lambda _events: self._on_readable(rank))
        return fd, link.fileno(), orders

    def deliver(self, message: bytes) -> None:
        """Give a message of the root to this host's server."""
        self._serve().on_message(message)

    def close(self) -> None:
        """Close all connections."""
        for rank in tuple(self._links):
            self._close(rank)

    def on_end(self, rank: int, code: int) -> None:
        """Take the end of a rank."""
        self._close_orders(rank)
        if code == 0:
            if rank in self._links:
                self._on_readable(rank)  # its last request
            self._ended.append(rank)
            self._report_unfinished()

    def _report_unfinished(self) -> None:
        """Report a rank that has ended within MPI, or that others of this host need in MPI_Init or in a barrier."""
        server = self._server
        if server is not None:
            unfinished = next((rank for rank in self._ended if rank in server.in_mpi or server.lacks(rank)), None)
            if unfinished is not None:
                self._report(protocol.UNFINISHED, b"%d" % unfinished)

    def _serve(self) -> PmiServer:
        """Return the server, which gets the connections of all ranks when the first one needs it."""
        if self._server is None:
            from ddlrun.agent.pmi import PmiServer  # noqa: PLC0415 - 2 ms, for programs with MPI alone
            from ddlrun.agent.pmi_values import KeyValues, process_mapping  # noqa: PLC0415 - the same

            mapping = process_mapping([host for host, _ in RankPositions(os.environ).all()])
            self._server = PmiServer(
                len(self._own.ranks),
                KeyValues(self._job.name, self._job.size, mapping),
                on_barrier=self._on_barrier,
                on_abort=self._on_abort,
                on_note=complain,
            )
            for rank, link in self._links.items():
                self._server.add(rank, link)
        return self._server

    def _on_readable(self, rank: int) -> None:
        """Answer a rank's request, or take the end of a connection that was not used."""
        ended = has_ended(self._links[rank]) if self._server is None else False
        if ended:
            self._close(rank)
        elif ended is not None:
            if not self._serve().on_readable(rank):
                self._close(rank)
            self._report_unfinished()

    def _on_barrier(self, message: bytes) -> None:
        self._report(protocol.PMI, protocol.pack_words([b"%d" % self._own.number, message]))

    def _close(self, rank: int) -> None:
        """Close a connection. No order follows, as the program may have called MPI_Finalize."""
        link = self._links.pop(rank)
        self._loop.forget(link.fileno())
        if self._server is None:
            link.close()
        else:
            self._server.close(rank)
        self._close_orders(rank)

    def _on_abort(self, rank: int, code: int) -> None:
        """Order the keeper of a rank that has called MPI_Abort to end the program with the exit code."""
        if rank in self._orders:
            try:
                os.write(self._orders[rank], b"%d\n" % code)
            except OSError:  # the program ends already
                return

    def _close_orders(self, rank: int) -> None:
        """Let the keeper of a rank know that no order follows."""
        if rank in self._orders:
            os.close(self._orders.pop(rank))


def open_link() -> tuple[_socket.socket, int]:
    """Return the server's end, and the descriptor that the program inherits; the caller closes its own copy of that."""
    own, programs = _socket.socketpair()
    own.setblocking(False)
    os.set_inheritable(programs.fileno(), True)
    return own, programs.detach()


def has_ended(link: _socket.socket) -> bool | None:
    """Return True if the program has closed its end, False if it has sent something, None if neither."""
    try:
        return not link.recv(1, _socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return True


def rank_variables(rank: int, fd: int, ranks: Sequence[int], size: int) -> dict[str, str]:
    """Return the variables from which an MPI library learns its place; its program inherits the descriptor."""
    return {
        "PMI_FD": str(fd),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(ranks.index(rank)),
        "MPI_LOCALNRANKS": str(len(ranks)),
    }
