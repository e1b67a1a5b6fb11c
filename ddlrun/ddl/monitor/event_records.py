"""Events of ddl.jsonl: the types of its JSON objects, from which their schema is generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from ddlrun.ddl.monitor.straggler_detection import Verdict
from ddlrun.ddl.monitor.traffic_meter import DimensionTraffic


class EventTime(TypedDict):
    """The key that the log adds to each event."""

    time: float
    """Time of the event, in seconds since 1970."""


class JitterRecord(TypedDict):
    """The rank with the most jitter."""

    rank: int
    host: str
    share: float
    """Jitter as a share of its computing time."""


class DimensionRate(TypedDict):
    """The key that the traffic of a dimension has besides its fields."""

    rate: float
    """Bytes per second while busy."""


class PhaseSpan(TypedDict):
    """A phase of the last iteration on each rank, in seconds from the begin of the iteration."""

    dimension: str
    phase: str
    """reduce-scatter, allgather or allreduce."""
    begin: list[float | None]
    """Null for a rank without this phase."""
    end: list[float | None]


class IterationSpans(TypedDict):
    """The last iteration on each rank, by the clock of its host."""

    start: float
    """Begin of the iteration on the first rank, in seconds since 1970."""
    begin: list[float | None]
    """Begin of the iteration on each rank, in seconds from `start`."""
    end: list[float | None]
    """End of the iteration on each rank, in seconds from `start`."""
    phases: list[PhaseSpan]


class IterationsEvent(IterationSpans):
    """The report of -dump_iter about some iterations; lists have one element per rank."""

    event: Literal["iterations"]
    first: int
    """Number of the first iteration."""
    last: int
    """Number of the last iteration."""
    topology: str
    mode: str
    seconds: float
    """Median time of an iteration."""
    compute: list[float]
    """Median seconds of computing."""
    reduce: list[float]
    """Median seconds in reductions."""
    jitter: list[float]
    """Jitter as a share of the computing time."""
    most_jitter: JitterRecord
    dimensions: list[Annotated[dict[str, Any], DimensionTraffic, DimensionRate]]


class StragglerCause(TypedDict, total=False):
    """The key that an event has only where a learner is slow."""

    cause: str
    """The reason, as text."""


class StragglerEvent(StragglerCause):
    """A finding of -rebind_iter about a rank."""

    event: Annotated[str, Verdict]
    rank: int
    host: str
    score: float
    """Its time as a multiple of the median of all ranks."""


IterationsRecord = Annotated[dict[str, Any], IterationsEvent, EventTime]
StragglerRecord = Annotated[dict[str, Any], StragglerEvent, EventTime]
