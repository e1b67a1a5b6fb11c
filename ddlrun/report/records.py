"""Records of `ddlrun network plan` and `racks`: the types of their JSON objects, the source of their schemas."""

from typing import Annotated, Any, TypedDict

from ddlrun.network.fabric import Link
from ddlrun.network.forecast import TrainingStep, UnevenData
from ddlrun.topology import RankOrder


class LinkBandwidth(TypedDict):
    """The field of a link that its JSON has in another form."""

    bandwidth: float | None
    """Bytes per second of one link in one direction; null: no limit."""


class DecompositionRecord(TypedDict):
    """The forecast of one topology."""

    topology: str
    steps: int
    """Number of messages that a rank sends one after another."""
    limit: str
    """The level of the network that limits the allreduce."""
    bytes: dict[str, float]
    """Bytes through the busiest link of each level, in one direction."""
    algorithm: str
    allreduce: float
    """Seconds of the allreduce."""
    step: float | None
    """Seconds of a training step; null without --compute."""
    efficiency: float | None
    """Computing time as a share of the step; null without --compute."""


class PenaltyRecord(TypedDict):
    """The cost of a wrong order."""

    level: str
    """The level whose busiest link carries more bytes."""
    factor: float
    """Factor by which the bytes grow."""


class WrongOrderRecord(TypedDict):
    """The costs of wrong orders; null where the order changes nothing."""

    hosts: PenaltyRecord | None
    """Hosts listed across racks."""
    ranks: PenaltyRecord | None
    """A flat collective with ranks in ddl order."""


class EpochImages(TypedDict):
    """The key that an epoch has besides those of its data."""

    images: int


class ForecastRecord(TypedDict):
    """The output of `ddlrun network plan --json`: the forecast of every topology, the fastest first."""

    topology: str
    """The topology that launch would use."""
    reason: str
    rank_order: Annotated[str, RankOrder]
    wiring: str
    """Ranks per host, hosts per rack and racks of the cluster."""
    network: str
    links: dict[str, Annotated[dict[str, Any], Link, LinkBandwidth]]
    """The link of each level: host, nic, uplink, aisle."""
    workload: Annotated[dict[str, Any], TrainingStep]
    decompositions: list[DecompositionRecord]
    wrong_order: WrongOrderRecord
    data: Annotated[dict[str, Any], UnevenData, EpochImages] | None
    """Null without --images."""


class DoubtRecord(TypedDict):
    """Hosts whose group is uncertain."""

    reason: str
    hosts: list[str]


class HierarchyLevelRecord(TypedDict):
    """A level of the hierarchy: racks, then groups of racks."""

    groups: list[list[str]]
    """The hosts of each group."""
    inside: float
    """Bytes per second of a pair inside a group, per direction, while all pairs send."""
    across: float
    """The same of a pair across groups."""
    doubts: list[DoubtRecord]


class LatencyRecord(TypedDict):
    """Median latencies in seconds; null where no pair was measured."""

    inside: float | None
    across: float | None


class DeclaredRacksRecord(TypedDict):
    """The declared racks."""

    source: str
    """The source that declares racks."""
    equal: bool
    """Whether the measured racks are equal to them."""


class HierarchyRecord(TypedDict):
    """The output of `ddlrun network racks --json`: the measured racks, and the rates that show them."""

    certain: bool
    racks: list[list[str]] | None
    """The hosts of each rack; null if the racks are uncertain."""
    topology: str | None
    """XxYxZ with the letter X; null if the racks are uncertain."""
    declared: DeclaredRacksRecord | None
    """Null if no racks are declared."""
    levels: list[HierarchyLevelRecord]
    latency: LatencyRecord
    rounds: int
    """Number of rounds of pairs."""
    seconds: float
    """Duration of the measurement."""
