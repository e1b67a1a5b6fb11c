"""Iterations of a run and the phases of their allreduces as Chrome trace events, which Perfetto opens.

The format: "Trace Event Format", JSON object format: complete events ("ph": "X") with `ts` and `dur` in microseconds,
metadata events ("M") that name processes and threads. Here a rank is a process, and a phase of a dimension a thread.
"""

from collections.abc import Iterator
from typing import Any

from ddlrun.errors import InputError
from ddlrun.page.record import Fields, RunRecord

ROWS = 64  # thread ids per rank, more than a rank has phases, so that the ids of all ranks differ


def chrome_trace(record: RunRecord) -> dict[str, Any]:
    """Return the trace of all reports with phases. Raises InputError where none has any."""
    dumps = [dump for dump in record.dumps if "phases" in dump]
    if not dumps:
        raise InputError(
            f"--trace: run folder {record.folder} has no phases of an allreduce: scripts that use ddlrun.ddl write "
            "them with DDL_OPTIONS='-dump_iter N', if rank 0's host can write to the run folder"
        )
    start = min(dump["start"] for dump in dumps)
    names = list(dict.fromkeys(_name(phase) for dump in dumps for phase in dump["phases"]))
    events = [*_metadata(record, names), *(event for dump in dumps for event in _events(dump, start, names))]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": record.plan["run_id"], "topology": record.plan["topology"], "clocks": "each host's own"},
    }


def _name(phase: Fields) -> str:
    return f"{phase['dimension']} {phase['phase']}"


def _metadata(record: RunRecord, names: list[str]) -> Iterator[dict[str, Any]]:
    for rank in sorted(record.plan["ranks"], key=lambda rank: int(rank["rank"])):
        number = rank["rank"]
        process = number + 1  # Perfetto takes process 0 for the idle one
        title = f"rank {number} on {rank['host']}"
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": number}}
        for row, name in enumerate(["iteration", *names]):
            place = {"pid": process, "tid": process * ROWS + row}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": row}}


def _events(dump: Fields, start: float, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of one report: those of its last iteration."""
    offset = 1e6 * (dump["start"] - start)
    rows = [("iteration", 0, dump), *((_name(phase), 1 + names.index(_name(phase)), phase) for phase in dump["phases"])]
    for name, row, spans in rows:
        for rank, (begin, end) in enumerate(zip(spans["begin"], spans["end"], strict=True)):
            if begin is not None and end is not None:
                yield {
                    "ph": "X", "name": name, "cat": "ddl", "pid": rank + 1, "tid": (rank + 1) * ROWS + row,
                    "ts": round(offset + 1e6 * begin, 3), "dur": round(1e6 * (end - begin), 3),
                    "args": {"iteration": dump["last"], "mode": dump["mode"]},
                }  # fmt: skip
