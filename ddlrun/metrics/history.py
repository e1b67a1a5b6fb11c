"""The samples of the last minute, by rank and by host."""

from collections import deque
from collections.abc import Iterable

from ddlrun.metrics.gpu_samples import mean_utilization, utilization_by_rank
from ddlrun.metrics.samples import HostSample, RankSample

MOST_SAMPLES = 60
# A rank or host without a sample for so many of its intervals has ended.
MOST_MISSED = 3
SLACK_SECONDS = 2.0


class History:
    """The latest samples; those of ranks that have ended are forgotten."""

    def __init__(self) -> None:
        self._ranks: dict[str, deque[RankSample]] = {}
        self._hosts: dict[str, deque[HostSample]] = {}
        self.time = 0.0
        """The time of the latest sample, in seconds since 1970; 0 without samples."""

    def add(self, samples: Iterable[RankSample | HostSample]) -> None:
        """Add samples, the oldest first."""
        for sample in samples:
            self.time = max(self.time, sample.time)
            if isinstance(sample, RankSample):
                self._ranks.setdefault(sample.ranks, deque(maxlen=MOST_SAMPLES)).append(sample)
            else:
                self._hosts.setdefault(sample.host, deque(maxlen=MOST_SAMPLES)).append(sample)

    def ranks(self, most: int = MOST_SAMPLES) -> dict[str, list[RankSample]]:
        """Return the last samples of each rank that runs, the oldest first, up to a number."""
        return {name: list(samples)[-most:] for name, samples in self._ranks.items() if self._is_recent(samples[-1])}

    def hosts(self, most: int = MOST_SAMPLES) -> dict[str, list[HostSample]]:
        """Return the last samples of each host, the oldest first, up to a number."""
        return {name: list(samples)[-most:] for name, samples in self._hosts.items() if self._is_recent(samples[-1])}

    def gpu_utilization(self) -> dict[str, float | None]:
        """Return the utilization of the GPUs of each rank that runs, by the latest samples; empty without GPUs."""
        by_host = {host: utilization_by_rank(samples[-1].gpus) for host, samples in self.hosts(1).items()}
        if not any(by_host.values()):
            return {}
        ranks = self.ranks(1).items()
        return {name: mean_utilization(name, by_host.get(samples[-1].host, {})) for name, samples in ranks}

    def _is_recent(self, sample: RankSample | HostSample) -> bool:
        return sample.time + MOST_MISSED * sample.seconds + SLACK_SECONDS >= self.time
