"""Diagnosis of a whole run: the causes of slowness that held for a good part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ddlrun.metrics.diagnosis import WINDOW, diagnose, summarize
from ddlrun.metrics.findings import Finding
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import Sample

# The job is examined so often at most, and a cause that held less often than this share is left out.
MOST_EXAMINATIONS = 100
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RunDiagnosis:
    """The causes of slowness of a run, those that cost most first."""

    limit: str
    """What limited the job, in words; empty with few samples."""
    findings: tuple[Finding, ...]
    """Of each cause and host, the most severe finding."""


def diagnose_run(samples: Sequence[Sample]) -> RunDiagnosis:
    """Return the diagnosis of the samples of a run, the oldest first."""
    times = [list(group) for _, group in groupby(samples, key=lambda sample: sample.time)]
    every = max(WINDOW // 2, -(-len(times) // MOST_EXAMINATIONS))
    history, limits = History(), []
    by_cause: dict[tuple[str, str], list[Finding]] = {}
    for number, group in enumerate(times, 1):
        history.add(group)
        if number % every == 0:
            for finding in diagnose(history):
                by_cause.setdefault((finding.cause.value, finding.host), []).append(finding)
            limits.append(summarize(history, []))
    lasting = [equal for equal in by_cause.values() if len(equal) >= LEAST_SHARE * len(limits)]
    lasting.sort(key=lambda equal: -sum(finding.severity for finding in equal))
    findings = tuple(max(equal, key=lambda finding: finding.severity) for equal in lasting)
    if not findings:
        return RunDiagnosis(limits[len(limits) // 2] if limits else "", ())
    share = len(lasting[0]) / len(limits)
    return RunDiagnosis(f"in {share:.0%} of the run, {findings[0].text}", findings)
