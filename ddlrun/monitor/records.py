"""Records of the monitor: the types of its JSON, from which its schemas are generated."""

from typing import Annotated, Any, TypedDict

from ddlrun.monitor.findings import SlownessCause
from ddlrun.monitor.samples import HostSample, RankSample


class SlownessRecord(TypedDict):
    """A cause of slowness."""

    cause: Annotated[str, SlownessCause]
    ranks: str
    """The ranks, such as 3 or 0-7; empty where a host is meant."""
    host: str
    severity: float
    """From 0 to 1: about the share of time that is lost."""
    text: str
    """The finding in words."""


class TopRecord(TypedDict):
    """The output of `ddlrun top --json`: the latest samples of a run, and what they show."""

    run_dir: str
    """The run folder."""
    time: float
    """The time of the samples, in seconds since 1970; 0 without samples."""
    limit: str
    """What limits the job, in words."""
    findings: list[SlownessRecord]
    """Causes of slowness, the most severe first."""
    ranks: list[Annotated[dict[str, Any], RankSample]]
    """The latest sample of each rank that runs, the ones in trouble first."""
    hosts: list[Annotated[dict[str, Any], HostSample]]
    """The latest sample of each host."""
