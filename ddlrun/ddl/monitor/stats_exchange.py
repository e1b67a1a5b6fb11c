"""The exchange of figures between learners without waiting, and its rounds of N iterations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.meters import Iteration
    from ddlrun.ddl.transports.communicators import Communicator, Exchange

# Seconds to wait for the last rows: at the end of a job other ranks may be busy, or gone.
LAST_SECONDS = 1.0


class RowConsumer(Protocol):
    """A use of the exchange: it makes this learner's row, and acts on the rows of all."""

    def row(self, times: Sequence[Iteration]) -> Sequence[float]:
        """Return this learner's figures of some iterations."""

    def act(self, rows: NDArray[Any]) -> None:
        """Act on the figures of all learners: an array (learners, figures), in rank order."""


class StatsExchange:
    """An exchange of rows of `width` numbers over a communicator of its own. All ranks create and free it together.

    No rank waits. Ranks may be in different iterations where a script tests its handles, and a rank that waited there
    would not move the messages of those behind it. So rows are posted, one at a time, and polled for later.
    """

    def __init__(self, comm: Communicator, width: int) -> None:
        self._base, self._comm = comm, comm.Dup()
        self._mine = np.empty(width)
        self._rows = np.empty((comm.size, width))
        self._request: Exchange | None = None
        self._posted = 0

    @property
    def busy(self) -> bool:
        """True if the rows of a round are still to come."""
        return self._request is not None

    def post(self, row: Sequence[float]) -> None:
        """Send a row to all ranks."""
        self._mine[:] = row
        self._request = self._comm.Iallgather(self._mine, self._rows)
        self._posted += 1

    def poll(self) -> NDArray[Any] | None:
        """Return the rows of all ranks (learners, width), in rank order, once they are complete; else None."""
        if self._request is None or not self._request.Test():
            return None
        self._request = None
        return self._rows

    def last(self) -> NDArray[Any] | None:
        """Return the rows that are still to come, if they come within a second; None once MPI has ended."""
        if self._comm.ended:
            return None
        until = time.monotonic() + LAST_SECONDS
        while self.busy and time.monotonic() < until:
            if (rows := self.poll()) is not None:
                return rows
            time.sleep(0.001)
        return None

    def free(self) -> None:
        """Free the communicator. Ranks that have posted fewer rows than others post the rest."""
        most = max(self._base.allgather(self._posted))
        while self.busy or self._posted < most:
            if self._request is not None:
                self._request.Wait()
                self._request = None
            else:
                self.post(self._mine.tolist())
        self._comm.Free()


class ExchangeRounds:
    """Makes a row every `every` iterations, and acts on the rows of all once they have come."""

    def __init__(self, comm: Communicator, every: int, width: int, consumer: RowConsumer) -> None:
        self._exchange = StatsExchange(comm, width)
        self._every, self._consumer = every, consumer
        self._times: list[Iteration] = []

    @property
    def last_of_round(self) -> bool:
        """True if the next iteration is the last of a round, or later."""
        return len(self._times) + 1 >= self._every

    def add(self, iteration: Iteration) -> None:
        """Count an iteration."""
        self._times.append(iteration)
        self._act()
        if len(self._times) < self._every or self._exchange.busy:
            return
        row, self._times = self._consumer.row(self._times), []
        self._exchange.post(row)
        self._act()

    def last(self) -> None:
        """Act on the rows that are still to come."""
        if (rows := self._exchange.last()) is not None:
            self._consumer.act(rows)

    def free(self) -> None:
        """Free the communicator. All ranks call it together."""
        self.last()
        self._exchange.free()

    def _act(self) -> None:
        if (rows := self._exchange.poll()) is not None:
            self._consumer.act(rows)
