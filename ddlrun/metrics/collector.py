"""The samples of a running job, collected from the keepers' reports and written to its run folder."""

import time
from collections.abc import Callable

from ddlrun.metrics.gpu_samples import utilization_by_rank
from ddlrun.metrics.metrics_file import LIMIT, MetricsFile
from ddlrun.metrics.samples import HostSample, RankSample, add_samples, parse_host_sample, parse_rank_sample
from ddlrun.ranges import parse_ranges, render_ranges

# With more ranks than this, those of a host have one sample together.
MOST_SINGLE_RANKS = 1000
# The room in the file of samples for each of them: some minutes.
BYTES_PER_RANK = 1 << 16


class SampleCollector:
    """The samples since the last time that they were written."""

    def __init__(self, path: str, ranks: int, complain: Callable[[str], None]) -> None:
        """Begin without samples; `complain` prints a problem with the file."""
        self._ranks: dict[int, RankSample] = {}
        self._hosts: dict[str, HostSample] = {}
        self.gpu_utilization: dict[int, float] = {}
        """The latest share of the time in which the GPU of a rank is busy, if it is known, and no other rank has it."""
        self._by_host = ranks > MOST_SINGLE_RANKS
        self._file = MetricsFile(path, complain, max(LIMIT, min(ranks, MOST_SINGLE_RANKS) * BYTES_PER_RANK))

    def add_rank(self, rank: int, host: str, text: str) -> None:
        """Add the report of a rank. Raises ProtocolError."""
        self._ranks[rank] = parse_rank_sample(text, rank, host, time.time())

    def add_host(self, host: str, text: str) -> None:
        """Add the report of a host. Raises ProtocolError."""
        self._hosts[host] = sample = parse_host_sample(text, host, time.time())
        self.gpu_utilization |= utilization_by_rank(gpu for gpu in sample.gpus if len(parse_ranges(gpu.ranks)) == 1)

    def write(self) -> None:
        """Write the samples; with many ranks, their sums per host."""
        samples = self._by_host_sums() if self._by_host else list(self._ranks.values())
        self._file.append(round(time.time(), 3), [*samples, *self._hosts.values()])
        self._ranks.clear()
        self._hosts.clear()

    def _by_host_sums(self) -> list[RankSample]:
        by_host: dict[str, dict[int, RankSample]] = {}
        for rank, sample in self._ranks.items():
            by_host.setdefault(sample.host, {})[rank] = sample
        return [add_samples(list(samples.values()), render_ranges(samples)) for samples in by_host.values()]
