"""A communicator of MPI, and the transport over its non-blocking messages."""

from __future__ import annotations

from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Generic

from mpi4py import MPI

from ddlrun.ddl.transports.communicators import Owner
from ddlrun.ddl.transports.mpi import collectives as mpi_collectives

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.errors import LostRankError

# Seconds: how long to poll without a pause, then the shortest and longest pause. A pause is a tenth of the wait so far.
SPIN, SHORTEST_PAUSE, LONGEST_PAUSE = 100e-6, 50e-6, 500e-6
# Bytes of a message: MPI counts up to 2^31 - 1.
MAX_MESSAGE = 1 << 30


class MpiCommunicator(MPI.Intracomm):
    """A communicator of mpi4py with the other methods of `Communicator`."""

    collectives = mpi_collectives

    @property
    def job_size(self) -> int:
        """The number of ranks of the job."""
        return MPI.COMM_WORLD.size

    @property
    def library(self) -> str:
        """The name and version of the MPI library."""
        return MPI.Get_library_version().split(",")[0]

    @property
    def ended(self) -> bool:
        """True once MPI has ended."""
        return MPI.Is_finalized()

    def make_transport(self) -> MpiTransport[Chunk]:
        """Return a transport over a duplicate."""
        return MpiTransport(self.Dup())

    def split_hosts(self) -> MpiCommunicator:
        """Return the communicator of the ranks on this host, in rank order."""
        return MpiCommunicator(self.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))

    def Split(self, color: int = 0, key: int = 0) -> MpiCommunicator:  # noqa: N802 - mpi4py's name
        """Return the communicator of the ranks with the same color."""
        return MpiCommunicator(super().Split(color, key))

    def take_maxima(self, values: NDArray[Any]) -> None:
        """Replace each number by the largest one of all ranks."""
        self.Allreduce(MPI.IN_PLACE, values, MPI.MAX)

    def abandon(self, error: LostRankError) -> None:
        """Do nothing: the others wait until this rank ends."""


class MpiTransport(Generic[Owner]):
    """Messages of a communicator, which must be used for nothing else. `close` frees it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        # The open messages, and the owner of each.
        self._requests: list[MPI.Request] = []
        self._owners: list[Owner] = []

    def post_send(self, data: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to send bytes; see `Transport`."""
        for at in range(0, len(data), MAX_MESSAGE):
            self._requests.append(self._comm.Isend([data[at : at + MAX_MESSAGE], MPI.BYTE], peer, tag))
            self._owners.append(owner)
            owner.open += 1

    def post_receive(self, buffer: memoryview, peer: int, tag: int, owner: Owner) -> None:
        """Begin to receive bytes; see `Transport`."""
        for at in range(0, len(buffer), MAX_MESSAGE):
            self._requests.append(self._comm.Irecv([buffer[at : at + MAX_MESSAGE], MPI.BYTE], peer, tag))
            self._owners.append(owner)
            owner.open += 1

    def wait_some(self, seconds: float) -> list[Owner]:
        """Return the owners that have no open messages any more. Pauses leave the core to other processes."""
        complete = self._take(MPI.Request.Testsome(self._requests))
        if complete or not seconds:
            return complete
        began = perf_counter()
        waited = 0.0
        while waited < seconds:
            if ready := MPI.Request.Testsome(self._requests):
                if complete := self._take(ready):
                    return complete
                began = perf_counter()
            waited = perf_counter() - began
            if waited > SPIN:
                sleep(min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))
        return []

    def close(self) -> None:
        """Free the communicator."""
        self._comm.Free()

    def _take(self, ready: Iterable[int] | None) -> list[Owner]:
        """Remove complete messages; return the owners that have no other ones."""
        requests, owners = self._requests, self._owners
        complete = []
        for index in sorted(ready or (), reverse=True):
            owner, last = owners[index], len(owners) - 1
            requests[index], owners[index] = requests[last], owners[last]
            del requests[last], owners[last]
            owner.open -= 1
            if not owner.open:
                complete.append(owner)
        return complete
