"""The search for the ranks that are late, after a collective has run out of time, and a barrier that names them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ddlrun.ddl.torch.backend.errors import GroupError
from ddlrun.ddl.transports.tcp.communicator import Messages
from ddlrun.ranges import name_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ddlrun.ddl.transports.tcp.address_exchange import Membership
    from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

# Seconds in which the other ranks reply, by threads that do not wait for their scripts.
GRACE = 3.0
# In larger groups only the ranks whose messages are missing are questioned.
MOST = 256


class Inquiry:
    """The question to the other ranks how many collectives they have begun.

    A rank waits for a message of its neighbour, which may itself wait for the rank that is late.
    """

    def __init__(self, endpoint: Endpoint, number: int, arrived: Callable[[int], bool]) -> None:
        """Question the others about the collective with a number; `arrived(rank)`: whether a rank has begun at all."""
        self._endpoint, self._number = endpoint, number
        others = range(endpoint.size) if endpoint.size <= MOST else endpoint.awaited()
        peers = [peer for peer in others if peer != endpoint.rank]
        self._absent = [peer for peer in peers if not arrived(peer)]
        self._present = [peer for peer in peers if peer not in self._absent]
        self.until = time.monotonic() + GRACE
        endpoint.progress.forget_below(number)
        endpoint.ask_progress(self._present)

    def is_over(self) -> bool:
        """Return True if all have replied, or the time for it is over."""
        return not self._silent() or self.until <= time.monotonic()

    def explain(self) -> str:
        """Return the reason why the collective is not complete."""
        of = self._endpoint.progress.of
        late = [peer for peer in self._present if peer in of and of[peer] < self._number]
        reasons = (
            ("had not called it", sorted(late + self._absent)),
            ("did not reply", self._silent()),
            ("had not sent a message", self._endpoint.awaited()),
        )
        return next((f"{self._name(ranks)} {reason}" for reason, ranks in reasons if ranks), "its messages are late")

    def _silent(self) -> list[int]:
        """Return the ranks that have not replied since, and were not as far before."""
        of = self._endpoint.progress.of
        return [peer for peer in self._present if peer not in of]

    def _name(self, ranks: Iterable[int]) -> str:
        return name_numbers("rank", map(self._endpoint.job.number, ranks))


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
