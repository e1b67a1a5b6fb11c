"""The messages of which a page draws a run: its state, content, samples and diagnosis."""

import os
from collections.abc import Container, Iterator
from contextlib import closing
from itertools import groupby
from typing import Any, TypedDict

from ddlrun.metrics.diagnosis import diagnose, summarize
from ddlrun.metrics.gpu_samples import mean_utilization, utilization_by_rank
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader, Sample
from ddlrun.metrics.run_diagnosis import RunDiagnosis, diagnose_run
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.metrics.top_table import describe_state, sort_by_trouble
from ddlrun.page.content import PageContent, make_content, script_name
from ddlrun.page.record import RunRecord, read_record, stat_record
from ddlrun.page.run_files import RunEvent, read_events, read_verdict
from ddlrun.plan.run_dir import RunDir
from ddlrun.ranges import parse_ranges
from ddlrun.runs.history import PastRun, PastRunState, read_past_run
from ddlrun.units import render_duration

# The fields of samples as they are, and those that are made of others: the GPUs of a rank (None: it has none).
RANK_FIELDS = ("time", "ranks", "host", "cpu", "rss", "read", "written", "queue")
HOST_FIELDS = ("time", "host", "cores", "cpu", "memory", "available")
# The samples that a page gets of the past of a run.
MOST_SAMPLES = 40_000
STARTING = "starting"
PREDICATES = {
    PastRunState.LOST: "lost: its ddlrun was killed, or its host failed",
    PastRunState.UNKNOWN: "started on another host, which has recorded no end so far",
}


class PageFinding(TypedDict):
    """A cause of slowness."""

    samples: list[str]
    """The names of samples; empty for a host."""
    cause: str
    text: str


class PageMessage(TypedDict):
    """What is new in a run."""

    first: bool
    """Whether the page forgets what it has had before."""
    run: str
    script: str
    state: str
    status: str
    """The state in words."""
    started: float
    """Seconds since the epoch; 0 if unknown."""
    limit: str
    """What limits the job, in words, or what limited it for most of the run; empty without samples."""
    findings: list[PageFinding]
    verdict: str
    """The verdict of the last examination; empty without one."""
    events: list[RunEvent]
    """The last stalls, failures, lost hosts and restarts."""
    order: list[str]
    """The names of the samples, the ranks in trouble first."""
    content: PageContent | None
    """The content besides samples; None: as before."""
    rank_fields: tuple[str, ...]
    samples: list[list[Any]]
    """The new samples of ranks: the values of these fields."""
    host_fields: tuple[str, ...]
    hosts: list[list[Any]]
    """The new samples of hosts: the values of these fields."""


class RunFeed:
    """The messages on a run for one page."""

    def __init__(self, folder: str) -> None:
        """Begin before the first message on the run of a folder."""
        self.folder = folder
        self._files = RunDir(folder)
        self._reader = MetricsReader(self._files.metrics, most=MOST_SAMPLES)
        self._history = History()
        self._times: dict[str, float] = {}
        self._gpus: dict[str, dict[int, float]] = {}
        self._changes: object = None
        self._record = RunRecord(folder)
        self._last: PageMessage | None = None
        self._whole: RunDiagnosis | None = None

    def close(self) -> None:
        """Close the file of the samples."""
        self._reader.close()

    def read(self) -> PageMessage | None:
        """Return the news since the last call; None if there is none."""
        new = list(self._read_new())
        self._history.add(new)
        message = self._make_message(new)
        last, self._last = self._last, message
        news = new or message["content"]
        if last is None or news or any(last[key] != message[key] for key in ("state", "verdict", "events")):
            return message
        return None

    def _read_new(self) -> Iterator[Sample]:
        """Yield the samples that were not read before: a file that was thinned out is read again."""
        for sample in self._reader.read():
            name = f"rank {sample.ranks}" if isinstance(sample, RankSample) else f"host {sample.host}"
            if sample.time > self._times.get(name, 0.0):
                self._times[name] = sample.time
                yield sample

    def _make_message(self, new: list[Sample]) -> PageMessage:
        history, past, content = self._history, read_past_run(self.folder), self._read_content()
        ranks, findings = history.ranks(), diagnose(history)
        limit = summarize(history, findings) if ranks else ""
        if past is not None and not past.state.may_run:
            whole = self._diagnose_run()
            limit, findings = whole.limit, list(whole.findings)
        return {
            "first": self._last is None,
            "run": os.path.basename(self.folder) if past is None else past.run.run,
            "script": script_name(() if past is None else past.run.program),
            "state": STARTING if past is None else past.state.value,
            "status": STARTING if past is None else _describe(past, self._record, history.time),
            "started": 0.0 if past is None else past.run.started,
            "limit": limit,
            "findings": [
                {"samples": _split(it.ranks, ranks), "cause": it.cause.value, "text": it.text} for it in findings
            ],
            "verdict": read_verdict(self._files.examination),
            "events": read_events(self._files.events),
            "order": sort_by_trouble(ranks, findings),
            "content": content,
            "rank_fields": (*RANK_FIELDS, "state", "gpu"),
            "samples": list(self._pick(new)),
            "host_fields": (*HOST_FIELDS, "received", "sent", "temperature"),
            "hosts": [_sum_up(sample) for sample in new if isinstance(sample, HostSample)],
        }

    def _diagnose_run(self) -> RunDiagnosis:
        """Return the diagnosis of a run that has ended."""
        if self._whole is None:
            with closing(MetricsReader(self._files.metrics, most=MOST_SAMPLES)) as reader:
                self._whole = diagnose_run(list(reader.read()))
        return self._whole

    def _read_content(self) -> PageContent | None:
        """Return the content if a file of it has changed."""
        changes = stat_record(self.folder)
        if changes == self._changes:
            return None
        self._changes, self._record = changes, read_record(self.folder)
        return make_content(self._record)

    def _pick(self, new: list[Sample]) -> Iterator[list[Any]]:
        """Yield what the page shows of ranks; the samples of a time, first ranks and then hosts, belong together."""
        for _, group in groupby(new, key=lambda sample: sample.time):
            samples = list(group)
            for host in samples:
                if isinstance(host, HostSample):
                    self._gpus[host.host] = utilization_by_rank(host.gpus)
            for rank in samples:
                if isinstance(rank, RankSample):
                    gpu = mean_utilization(rank.ranks, self._gpus.get(rank.host, {}))
                    yield [*(getattr(rank, name) for name in RANK_FIELDS), describe_state(rank), gpu]


def _describe(past: PastRun, record: RunRecord, now: float) -> str:
    """Return the state of a run in words; `now` is the time of the latest sample."""
    state = past.state
    if past.seconds is None or past.exit_code is None:
        after = f", {render_duration(now - past.run.started)} after its start" if now > past.run.started else ""
        return PREDICATES.get(state, state.value) + (after if state is PastRunState.RUNNING else "")
    duration = f"after {render_duration(past.seconds)}"
    if not past.exit_code:
        return f"{state.value} {duration}"
    root, reason = record.outcome.get("root"), record.outcome.get("reason")
    cause = f": rank {root['rank']} on {root['host']}" if root else f": {reason}" if reason else ""
    return f"{state.value} with exit code {past.exit_code} {duration}{cause}"


def _split(ranks: str, names: Container[str]) -> list[str]:
    """Return the names of the samples of a finding's ranks.

    >>> _split("0-2", {"0", "1", "2"}), _split("0-7", {"0-7", "8-15"}), _split("", {"0"})
    (['0', '1', '2'], ['0-7'], [])
    """
    return [ranks] if ranks in names else [str(rank) for rank in sorted(parse_ranges(ranks))]


def _sum_up(sample: HostSample) -> list[Any]:
    traffic = (sum(nic.received for nic in sample.nics), sum(nic.sent for nic in sample.nics))
    temperature = max((gpu.temperature for gpu in sample.gpus if gpu.temperature is not None), default=None)
    return [*(getattr(sample, name) for name in HOST_FIELDS), *traffic, temperature]
