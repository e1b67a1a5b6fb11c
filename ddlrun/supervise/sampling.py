"""The samples of a job's use of resources: the order to the keepers, and the collection of their reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.wire.loop import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddlrun.metrics.collector import SampleCollector
    from ddlrun.plan.run_dir import RunDir
    from ddlrun.supervise.keepers import Keepers

# ddlrun reads up to this many reports per second; ranks of larger jobs report less often.
MOST_REPORTS = 500


class Sampling:
    """The schedule of the samples, which begin one interval after the start; times are those of time.monotonic()."""

    def __init__(self, interval: float, ranks: int, files: RunDir, complain: Callable[[str], None]) -> None:
        """Begin, with some seconds between two samples of a rank; 0: there are none."""
        self._interval = max(interval, ranks / MOST_REPORTS)
        self._ranks, self._files, self._complain = ranks, files, complain
        self._next = time.monotonic() + self._interval if interval else NEVER
        self._ordered: set[int] = set()
        self._collector: SampleCollector | None = None

    def deadline(self) -> float:
        """Return the time at which `collect` has something to do."""
        return self._next

    @property
    def collector(self) -> SampleCollector:
        """What takes the reports of keepers. Raises ProtocolError if none was ordered."""
        if self._collector is None:
            raise ProtocolError("it reports its use of resources without an order")
        return self._collector

    def gpu_utilization(self) -> Mapping[int, float]:
        """Return the latest share of the time in which the GPU of a rank is busy, where that is known."""
        return {} if self._collector is None else self._collector.gpu_utilization

    def collect(self, now: float, keepers: Keepers) -> None:
        """Write the reports since the last time, and order those of new ranks, if that is due."""
        if now < self._next:
            return
        self._next = now + self._interval
        if self._collector is None:
            from ddlrun.metrics.collector import SampleCollector  # noqa: PLC0415 - 26 ms, not for jobs that last a moment

            self._collector = SampleCollector(self._files.metrics, self._ranks, self._complain)
        self._collector.write()
        for peer in list(keepers.peers.values()):
            if peer.running and peer.rank is not None and peer.rank not in self._ordered:
                self._ordered.add(peer.rank)
                peer.send(protocol.MEASURE, f"{self._interval:g}".encode())
