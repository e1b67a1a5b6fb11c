"""A barrier whose error names the ranks that have not reached it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ddlrun.ddl.torch.backend.errors import GroupError
from ddlrun.ddl.transports.tcp.communicator import Messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.transports.tcp.address_exchange import Membership
    from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator


class MonitoredBarrier:
    """Messages of all members to rank 0, which answers once it has all of them. Errors have the words of gloo's."""

    def __init__(self, comm: TcpCommunicator, job: Membership, tag: int, seconds: float, *, wait_all: bool) -> None:
        """Prepare a barrier.

        Args:
            comm: Used for such barriers alone.
            job: The members.
            tag: That of its messages, the same on all ranks.
            seconds: The limit.
            wait_all: The error names all ranks that are late, and not only the first one.
        """
        self._comm, self._job, self._tag, self._seconds, self._wait_all = comm, job, tag, seconds, wait_all
        self._until = time.monotonic() + seconds
        self._sent, self._received = Messages(comm), {peer: Messages(comm) for peer in range(comm.size)}
        self._answered = False

    def start(self) -> Callable[[], bool]:
        """Send and receive; return a function that returns whether the barrier is complete, or its time is over."""
        peers = range(1, self._comm.size) if self._comm.rank == 0 else [0]
        for peer in peers:
            self._received[peer].receive(np.empty(1, np.uint8), peer, self._tag)
        if self._comm.rank:
            self._sent.send(b"\0", 0, self._tag)
        return self._is_over

    def check(self) -> None:
        """Raise GroupError if the barrier is not complete."""
        late = [self._job.number(peer) for peer, messages in self._received.items() if messages.open]
        if not late:
            return
        mine, limit = self._job.number(self._comm.rank), f"{self._seconds * 1000:.0f} ms"
        if self._comm.rank:
            raise GroupError(
                f"[Rank {mine}]: Rank {mine} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank {late[0]} within {limit}; the error of rank {late[0]} names the late rank"
            )
        if self._seconds <= 0:
            raise GroupError(f"[Rank {mine}]: Rank {mine} timed out in monitoredBarrier after {limit}")
        names = f"Ranks {', '.join(map(str, late))}" if self._wait_all else f"Rank {late[0]}"
        raise GroupError(f"[Rank {mine}]: {names} failed to pass monitoredBarrier in {limit}")

    def _is_over(self) -> bool:
        if any(messages.open for messages in self._received.values()):
            return self._until <= time.monotonic()
        if self._comm.rank == 0 and not self._answered:
            self._answered = True
            for peer in range(1, self._comm.size):
                self._sent.send(b"\0", peer, self._tag)
        return not self._sent.open
