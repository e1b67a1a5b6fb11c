"""A row of figures from each learner to all, while training goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI
    from numpy.typing import NDArray

    from ddlrun.ddl.monitor.iteration_timer import Iteration

# At the end of a job the others may be busy with something else, or gone.
LAST_SECONDS = 1.0


class Purpose(Protocol):
    """What rows are for."""

    def row(self, times: Sequence[Iteration]) -> Sequence[float]:
        """Return this learner's figures of iterations."""

    def act(self, rows: NDArray[Any]) -> None:
        """Do what is to be done; `rows` are (learners, figures), in the order of ranks."""


class StatsExchange:
    """Rows of `width` numbers over a communicator of its own; made and freed by all ranks together.

    Nobody waits: ranks may be at different iterations where a script tests its handles, and a rank that waited there
    would move no messages of those behind it. So rows are posted, one at a time, and looked for later.
    """

    def __init__(self, comm: MPI.Intracomm, width: int) -> None:
        self._base, self._comm = comm, comm.Dup()
        self._mine = np.empty(width)
        self._rows = np.empty((comm.size, width))
        self._request: MPI.Request | None = None
        self._posted = 0

    @property
    def busy(self) -> bool:
        """Whether a row was posted that not all have answered yet."""
        return self._request is not None

    def post(self, row: Sequence[float]) -> None:
        """Send a row to all."""
        self._mine[:] = row
        self._request = self._comm.Iallgather(self._mine, self._rows)
        self._posted += 1

    def poll(self) -> NDArray[Any] | None:
        """Return all rows (learners, width), in the order of ranks, once they are there."""
        if self._request is None or not self._request.Test():
            return None
        self._request = None
        return self._rows

    def last(self) -> NDArray[Any] | None:
        """Return what is still to come, if it comes soon; nothing once MPI has ended."""
        from mpi4py import MPI  # noqa: PLC0415 - it is loaded

        if MPI.Is_finalized():
            return None
        until = time.monotonic() + LAST_SECONDS
        while self.busy and time.monotonic() < until:
            if (rows := self.poll()) is not None:
                return rows
            time.sleep(0.001)
        return None

    def free(self) -> None:
        """Free the communicator; those that have posted fewer rows than others catch up."""
        most = max(self._base.allgather(self._posted))
        while self.busy or self._posted < most:
            if self._request is not None:
                self._request.Wait()
                self._request = None
            else:
                self.post(self._mine.tolist())
        self._comm.Free()


class ExchangeRounds:
    """Every so many iterations makes a row of their times, and acts on the rows of all once they have come."""

    def __init__(self, comm: MPI.Intracomm | None, every: int, width: int, purpose: Purpose) -> None:
        self._exchange = None if comm is None else StatsExchange(comm, width)
        self._every, self._purpose = every, purpose
        self._times: list[Iteration] = []

    @property
    def last_of_round(self) -> bool:
        """Whether the next iteration is the last one of a row, or later."""
        return len(self._times) + 1 >= self._every

    def add(self, iteration: Iteration) -> None:
        """Count an iteration in."""
        self._times.append(iteration)
        if self._exchange is not None and (rows := self._exchange.poll()) is not None:
            self._purpose.act(rows)
        if len(self._times) < self._every or (self._exchange is not None and self._exchange.busy):
            return
        row, self._times = self._purpose.row(self._times), []
        if self._exchange is not None:
            self._exchange.post(row)
        else:
            self._purpose.act(np.array([row]))

    def last(self) -> None:
        """Act on what is still to come."""
        if self._exchange is not None and (rows := self._exchange.last()) is not None:
            self._purpose.act(rows)

    def free(self) -> None:
        """Free the communicator; all ranks call it together."""
        self.last()
        if self._exchange is not None:
            self._exchange.free()
