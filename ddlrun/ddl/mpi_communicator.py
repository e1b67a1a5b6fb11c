"""The transport over MPI's non-blocking messages."""

from __future__ import annotations

from time import perf_counter, sleep
from typing import TYPE_CHECKING, Generic

from mpi4py import MPI

from ddlrun.ddl.transport import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable

# Seconds: how long to poll without a pause, then the shortest and longest pause. A pause is a tenth of the wait so far.
SPIN, SHORTEST_PAUSE, LONGEST_PAUSE = 100e-6, 50e-6, 500e-6
# Bytes of a message: MPI counts up to 2^31 - 1.
MAX_MESSAGE = 1 << 30


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
