"""The messages of which a page draws a run: its state, placement, samples and diagnosis."""

import os
from collections.abc import Container, Iterator
from itertools import groupby
from typing import Any, TypedDict

from ddlrun.monitor.diagnosis import diagnose, summarize
from ddlrun.monitor.gpu_samples import mean_utilization, utilization_by_rank
from ddlrun.monitor.history import History
from ddlrun.monitor.metrics_file import MetricsReader, Sample
from ddlrun.monitor.samples import HostSample, RankSample
from ddlrun.monitor.table import sort_by_trouble
from ddlrun.page.run_files import RunEvent, read_events, read_ranks, read_verdict
from ddlrun.plan.run_dir import RunDir
from ddlrun.ranges import parse_ranges
from ddlrun.runs.history import read_past_run
from ddlrun.wording import kernel_wait

RANK_FIELDS = ("time", "ranks", "size", "host", "cpu", "rss", "read", "written", "queue", "state", "function")


class FeedMessage(TypedDict):
    """What is new in a run."""

    first: bool
    """Whether the page forgets what it has had before."""
    run: str
    state: str
    seconds: float
    """The time from the start to the latest sample or to the end; 0 if unknown."""
    limit: str
    """What limits the job, in words."""
    findings: list[tuple[list[str], str]]
    """Each cause of slowness: names of samples, which are empty for a host, and words."""
    doctor: str
    """The verdict of the last examination; empty without one."""
    events: list[RunEvent]
    """The last stalls, failures, lost hosts and restarts."""
    order: list[str]
    """The names of the samples, the ranks in trouble first."""
    ranks: list[dict[str, Any]]
    """The ranks of the plan, in the first message."""
    samples: list[dict[str, Any]]
    """The new samples of ranks, with the utilization of their GPUs (None: they have none)."""
    hosts: list[dict[str, Any]]
    """The new samples of hosts."""


class RunFeed:
    """The messages on a run for one page."""

    def __init__(self, folder: str) -> None:
        """Begin before the first message on the run of a folder."""
        self.folder = folder
        self._files = RunDir(folder)
        self._reader = MetricsReader(self._files.metrics)
        self._history = History()
        self._times: dict[str, float] = {}
        self._gpus: dict[str, dict[int, float]] = {}
        self._last: FeedMessage | None = None

    def close(self) -> None:
        """Close the file of the samples."""
        self._reader.close()

    def read(self) -> FeedMessage | None:
        """Return the news since the last call; None if there is none."""
        new = list(self._read_new())
        self._history.add(new)
        message = self._make_message(new)
        last, self._last = self._last, message
        if last is None or new or any(last[key] != message[key] for key in ("state", "doctor", "events")):
            return message
        return None

    def _read_new(self) -> Iterator[Sample]:
        """Yield the samples that were not read before: a file that was thinned out is read again."""
        for sample in self._reader.read():
            name = f"rank {sample.ranks}" if isinstance(sample, RankSample) else f"host {sample.host}"
            if sample.time > self._times.get(name, 0.0):
                self._times[name] = sample.time
                yield sample

    def _make_message(self, new: list[Sample]) -> FeedMessage:
        history, past = self._history, read_past_run(self.folder)
        findings, ranks = diagnose(history), history.ranks()
        seconds = 0.0
        if past is not None:
            seconds = past.seconds or max(0.0, history.time - past.run.started)
        return {
            "first": self._last is None,
            "run": os.path.basename(self.folder) if past is None else past.run.run,
            "state": "starting" if past is None else past.state.value,
            "seconds": seconds,
            "limit": summarize(history, findings),
            "findings": [(_split(finding.ranks, ranks), finding.text) for finding in findings],
            "doctor": read_verdict(self._files.diagnosis),
            "events": read_events(self._files.events),
            "order": sort_by_trouble(ranks, findings),
            "ranks": read_ranks(self._files.plan) if self._last is None else [],
            "samples": list(self._pick(new)),
            "hosts": [_sum_up(sample) for sample in new if isinstance(sample, HostSample)],
        }

    def _pick(self, new: list[Sample]) -> Iterator[dict[str, Any]]:
        """Yield what the page shows of ranks; the samples of a time, first ranks and then hosts, belong together."""
        for _, group in groupby(new, key=lambda sample: sample.time):
            samples = list(group)
            for host in samples:
                if isinstance(host, HostSample):
                    self._gpus[host.host] = utilization_by_rank(host.gpus)
            for rank in samples:
                if isinstance(rank, RankSample):
                    gpu = mean_utilization(rank.ranks, self._gpus.get(rank.host, {}))
                    yield {
                        **{name: getattr(rank, name) for name in RANK_FIELDS},
                        "function": kernel_wait(rank.function),
                        "gpu": gpu,
                    }


def _split(ranks: str, names: Container[str]) -> list[str]:
    """Return the names of the samples of a finding's ranks.

    >>> _split("0-2", {"0", "1", "2"}), _split("0-7", {"0-7", "8-15"}), _split("", {"0"})
    (['0', '1', '2'], ['0-7'], [])
    """
    return [ranks] if ranks in names else [str(rank) for rank in sorted(parse_ranges(ranks))]


def _sum_up(sample: HostSample) -> dict[str, Any]:
    return {
        "time": sample.time,
        "host": sample.host,
        "cores": sample.cores,
        "cpu": sample.cpu,
        "memory": sample.memory,
        "available": sample.available,
        "received": sum(nic.received for nic in sample.nics),
        "sent": sum(nic.sent for nic in sample.nics),
        "temperature": max((gpu.temperature for gpu in sample.gpus if gpu.temperature is not None), default=None),
    }
