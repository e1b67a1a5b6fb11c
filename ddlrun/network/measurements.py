"""Results of the measuring job, and the record of `ddlrun network tune`."""

from collections.abc import Sequence
from typing import TypedDict


class MeasuredLevel(TypedDict):
    """A level of the hierarchy; hosts are numbers."""

    groups: Sequence[Sequence[int]]
    inside: float
    """Bytes per second of a pair inside a group, per direction, while all pairs send."""
    across: float
    """The same of a pair across groups."""
    doubts: Sequence[tuple[str, Sequence[int]]]
    """Reasons why the groups are uncertain, and the hosts that they concern."""


class RacksResult(TypedDict):
    """The hierarchy of the hosts of a job: racks, then groups of racks; no level where the network is flat."""

    levels: Sequence[MeasuredLevel]
    rounds: int
    """Number of rounds of pairs."""
    seconds: float
    """Duration of the measurement."""
    latency: tuple[float | None, float | None]
    """Median latencies in seconds of pairs inside the groups of the first level, and across; None: no pair."""
    rate: float
    """Median bytes per second of a pair."""


class LinkRates(TypedDict):
    """A measured link."""

    latency: float
    """Seconds of a message."""
    single: float
    """Bytes per second of one pair of ranks."""
    shared: float
    """Bytes per second of all pairs that share the link, at the same time."""


class SampleRecord(TypedDict):
    """The samples of a collective."""

    bytes: int
    """Bytes of the array, in whole elements."""
    seconds: float
    """Median time."""
    quartiles: list[float]
    """First and third quartile of the times."""
    samples: int
    """Number of times."""
    correct: bool
    """Whether the result was correct."""


class TimingRecord(SampleRecord):
    """The times of a collective with one algorithm and size."""

    collective: str
    algorithm: str
    """mpi, or a mode of ddlrun.ddl."""
    size: int
    """Bytes that were requested."""


class BandwidthRecord(TypedDict):
    """Bandwidths as nccl-tests defines them."""

    algbw: float
    """Algorithm bandwidth, in bytes per second."""
    busbw: float
    """Bus bandwidth, in bytes per second."""
    share: float | None
    """Share of the limit that the links set; null on a single host."""


class CollectiveRecord(TimingRecord, BandwidthRecord):
    """The measurement of a collective with one algorithm and size."""


class BenchResult(TypedDict):
    """Links and collectives of a job."""

    topology: str
    links: dict[str, LinkRates]
    """The links of each level: host, nic, uplink."""
    network: str
    """The links as YAML, for --links of ddlrun network plan."""
    measured: list[CollectiveRecord]
    skipped: list[tuple[str, str, int]]
    """Collective, algorithm and size of each measurement that exceeded the budget or the memory."""
    note: str
    """A note if rates contradict the declared racks, or a host's NIC is slower than most; otherwise empty."""
    seconds: float
    """Duration of the measurement."""


class BestSettings(TypedDict):
    """The fastest settings of ddlrun.ddl."""

    topology: str
    mode: str
    tuning: str
    """Sizes, as in DDLRUN_DDL_TUNING."""
    seconds: float
    """Median time of a step."""


class CandidateRecord(BestSettings):
    """The measurement of one candidate."""

    runs: int
    """Number of measured steps."""
    expected: float
    """Seconds that ddlrun network plan predicts."""


class SearchResult(TypedDict):
    """The result of a search for settings of ddlrun.ddl."""

    measured: list[CandidateRecord]
    """All candidates, the fastest first."""
    best: BestSettings
    complete: bool
    """Whether the search ended within the budget."""


class TuneResult(SearchResult):
    """The links and the fastest settings of a job."""

    links: dict[str, LinkRates]
    """The links of each level: host, nic, uplink; empty if --links gave them."""
    major: int
    """Major version of Open MPI."""
    topology: str
    default_seconds: float
    """Seconds of a step without a profile."""
    seconds: float
    """Duration of the search."""


class HorovodSettingRecord(TypedDict):
    """Settings of Horovod."""

    variables: dict[str, str]
    """The variables that set them; empty: Horovod's defaults."""
    seconds: float
    """Median time of a step."""


class HorovodResult(TypedDict):
    """The result of a search for settings of Horovod."""

    measured: list[HorovodSettingRecord]
    """All settings, the fastest first."""
    best: HorovodSettingRecord
    default_seconds: float
    """Seconds of a step with Horovod's defaults."""
    complete: bool
    """Whether the search ended within the budget."""


class TuneHorovod(TypedDict, total=False):
    """The part of `ddlrun network tune --json` that is absent if Horovod was not tuned."""

    horovod: HorovodResult


class TuneRecord(TuneResult, TuneHorovod):
    """The output of `ddlrun network tune --json`: the measured settings, the fastest first, in bytes and seconds."""

    gradient: int
    """Bytes of gradients per step."""
    profile: str | None
    """The file with the profile; null if it was not saved."""
    hosts: list[str]
