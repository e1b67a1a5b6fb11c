"""The search for the ranks that are late, after a collective has run out of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddlrun.ranges import name_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
