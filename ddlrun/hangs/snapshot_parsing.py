"""The JSON of a rank's snapshot, as its keeper sends it: parse."""

import json
from collections.abc import Mapping
from typing import Any

from ddlrun.hangs.communicators import parse_communicator
from ddlrun.hangs.snapshot import (
    Counters,
    DeadConnection,
    Frame,
    LockHolder,
    ProcessGroup,
    ProcessSnapshot,
    RankSnapshot,
    RecentOperation,
    RecordedOperation,
    StartedGroup,
    ThreadStack,
)
from ddlrun.ranges import parse_ranges
from ddlrun.wording import printable


def parse_snapshot(text: str | bytes) -> RankSnapshot:
    """Return the snapshot that a keeper has sent. Raises ValueError if it cannot be read."""
    try:
        return build_snapshot(json.loads(text))
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the snapshot cannot be read") from error


def build_snapshot(record: Mapping[str, Any]) -> RankSnapshot:
    """Return the snapshot of which a record has the fields; LookupError and others are raised if it has not all."""
    processes = tuple(_parse_process(process) for process in record["processes"])
    connections = tuple(DeadConnection(_text(pair["local"]), _text(pair["remote"])) for pair in record["connections"])
    return RankSnapshot(
        processes,
        connections,
        operations=tuple(_parse_operation(operation) for operation in record.get("operations", ())),
        started={
            _text(name): StartedGroup(int(use["number"]), _text(use["description"]))
            for name, use in record.get("started", {}).items()
        },
        knows_groups=bool(record.get("knows_groups", False)),
        recent=tuple(
            RecentOperation(_text(group), int(number), _text(name), _number(peer))
            for group, number, name, peer in record.get("recent", ())
        ),
        ended=int(record.get("ended", 0)),
        communicators=tuple(map(parse_communicator, record.get("communicators", ()))),
        storage=int(record.get("storage", 0)),
    )


def _parse_operation(record: Mapping[str, Any]) -> RecordedOperation:
    members = tuple(sorted(parse_ranges(record["members"])))
    return RecordedOperation(
        number=int(record["number"]),
        name=_text(record["name"]),
        data=_text(record["data"]),
        backend=_text(record["backend"]),
        group=ProcessGroup(_text(record["group"]), _text(record["description"]), members),
        peer=_number(record["peer"]),
        tag=int(record["tag"]),
    )


def _parse_process(record: Mapping[str, Any]) -> ProcessSnapshot:
    names = ("name", "state", "waits_in", "call", "target", "problem")
    return ProcessSnapshot(
        pid=int(record["pid"]),
        command=tuple(_text(word) for word in record["command"]),
        threads=tuple(_parse_thread(thread) for thread in record["threads"]),
        switches=int(record["switches"]),
        replies=int(record["replies"]),
        time=float(record["time"]),
        gpu=bool(record["gpu"]),
        variables=tuple(_text(word) for word in record.get("variables", ())),
        counters=parse_counters(record["counters"]) if "counters" in record else Counters(),
        holder=_parse_holder(record.get("holder")),
        **{name: _text(record[name]) for name in names},
    )


def parse_counters(record: Mapping[str, Any]) -> Counters:
    """Return the counters that a keeper has sent; LookupError and others are raised if it has not all."""
    whole = ("read", "written", "stored", "received", "sent", "first", "faults")
    return Counters(
        threads={int(thread): (float(ran), float(ready)) for thread, (ran, ready) in record["threads"].items()},
        ended=float(record["ended"]),
        mpi=bool(record["mpi"]),
        **{name: int(record[name]) for name in whole},
    )


def _parse_holder(record: Mapping[str, Any] | None) -> LockHolder | None:
    if record is None:
        return None
    return LockHolder(_text(record["file"]), int(record["pid"]), _text(record["name"]), _number(record["rank"]))


def _parse_thread(record: Mapping[str, Any]) -> ThreadStack:
    frames = tuple(
        Frame(_text(frame["function"]), _text(frame["file"]), int(frame["line"]), _text(frame["source"]))
        for frame in record["frames"]
    )
    return ThreadStack(int(record["id"]), _text(record["name"]), bool(record["active"]), frames)


def _number(value: Any) -> int | None:  # noqa: ANN401 - of JSON
    return None if value is None else int(value)


def _text(value: object) -> str:
    """Return a text in one line that a terminal can show."""
    return " ".join(printable(str(value)).split())
