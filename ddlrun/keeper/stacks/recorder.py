"""The operations of a rank of torch.distributed, from PyTorch's flight recorders.

PyTorch records the operations of gloo, and those of NCCL in a recorder of their own. The start-up hook writes the
records to a file in memory on request; jobs of others leave them in files.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.stacks.python_stacks import POLL_SECONDS, find_memory_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Record = dict[str, Any]

# As in hook/ddlrun_stacks.py. The descriptor of the pipe for requests follows.
RECORDER_FILE = "ddlrun-flight-recorder-"
MOST_SECONDS = 2.0
DEFAULT_GROUP = "default_pg"
MOST_TENSORS = 3
MOST_OPERATIONS, MOST_RECENT = 32, 128
# A GPU has ended such an operation, but PyTorch has not noticed that yet.
COMPLETED = "completed"
ARROWS = ("->", "<-")


def read_recorder(pids: Iterable[int], seconds: float) -> tuple[int, Record, list[Record]]:
    """Return the first of a rank's processes with a recorder, its operations (see RankSnapshot), and its stacks.

    Args:
        pids: The processes; workers that a process has forked, which come later, have its descriptors.
        seconds: The time limit.
    """
    for pid in pids:
        path, name = find_memory_file(pid, RECORDER_FILE)
        if path:
            pipe = f"/proc/{pid}/fd/{name.split()[0]}"
            return pid, *parse_recorder(_request(path, pipe, seconds=min(seconds, MOST_SECONDS)))
    return 0, *parse_recorder(b"")


def _request(file_path: str, pipe_path: str, *, seconds: float) -> bytes:
    """Return the records as JSON; empty if the process does not reply in time, as when it is stopped."""
    request = b"%d" % time.monotonic_ns()
    end = time.monotonic() + seconds
    try:
        pipe = os.open(pipe_path, os.O_WRONLY | os.O_NONBLOCK)
        with open(pipe, "wb", buffering=0) as writer, open(file_path, "rb", buffering=0) as file:
            writer.write(request)
            while time.monotonic() < end:
                text = file.read() or b""
                if text.startswith(request) and text.endswith(b"\n"):
                    return text[len(request) :]
                file.seek(0)
                time.sleep(POLL_SECONDS)
    except OSError:  # the process has ended
        pass
    return b""


def parse_recorder(text: bytes) -> tuple[Record, list[Record]]:
    """Return the summary of recorders in JSON, that of none if it cannot be read, and the stacks with them."""
    import json  # noqa: PLC0415 - in the keeper's child alone

    try:
        recorders = json.loads(text or b"[]")
        threads = [thread for recorder in recorders for thread in recorder.get("threads", ())]
        return summarize_recorders(recorders), threads
    except (ValueError, LookupError, TypeError, AttributeError):  # another version
        return summarize_recorders([]), []


def summarize_recorders(recorders: list[Record]) -> Record:
    """Return the operations that have not ended, the oldest first, and what has begun and ended before.

    `started` has the number of the last collective operation of each group, by the group's name. The start-up hook's
    recorder has `calls`, and all groups of the rank: they come first, in the order of their creation. It has the
    operations of ddlrun's backend as `calls`, `counts` and `recent`, and the messages of all. Raises LookupError,
    ValueError, TypeError or AttributeError for recorders of another version.
    """
    entries = [entry for recorder in recorders for entry in recorder.get("entries", ())]
    members = {name: config for recorder in recorders for name, config in recorder.get("pg_config", {}).items() if name}
    own = [item for recorder in recorders if "calls" in recorder for item in recorder.get("pg_config", {}).items()]
    started: dict[str, Record] = {name: {"number": 0, "description": config["desc"]} for name, config in own}
    for entry in entries:
        name, description = entry["process_group"]
        use = started.setdefault(name, {"number": 0, "description": description})
        use["number"] = max(use["number"], 0 if entry["is_p2p"] else int(entry["collective_seq_id"]))
    calls = [_describe_call(call, members) for recorder in recorders for call in recorder.get("calls", ())]
    for call in calls:
        started.setdefault(call["group"], {"number": 0, "description": call["description"]})
    counts = {name: int(count) for recorder in recorders for name, count in recorder.get("counts", {}).items()}
    for name, count in counts.items():
        started[name]["number"] = count
    ended = [[int(entry["record_id"]) + 1 for entry in entries if _has_ended(entry)] for entries in _lists(recorders)]
    return {
        "ended": sum(max(numbers, default=0) for numbers in ended) + _count_ended(counts, calls),
        "started": started,
        "knows_groups": bool(own),
        "recent": _list_recent(entries, [use for recorder in recorders for use in recorder.get("recent", ())]),
        "operations": [*calls, *(_describe(entry, members) for entry in _find_waiting(entries))],
    }


def _list_recent(entries: list[Record], uses: list[Any]) -> list[tuple[str, int, str, int | None]]:
    """Return the group, number, name and peer of the last operations, the oldest first.

    `uses` are the messages, and the collective operations of ddlrun's backend, each after the time in ns.
    """
    recorded = [
        (int(entry["time_created_ns"]), entry["process_group"][0], int(entry["collective_seq_id"]), _name(entry), None)
        for entry in entries
        if not entry["is_p2p"]
    ]
    ordered = sorted([*recorded, *uses], key=lambda use: int(use[0]))
    return [(group, int(number), name, peer) for _, group, number, name, peer in ordered[-MOST_RECENT:]]


def _name(entry: Record) -> str:
    return str(entry["profiling_name"].rpartition(":")[2])


def _count_ended(counts: dict[str, int], calls: list[Record]) -> int:
    """Return the collectives that have ended in groups which count them; the first that has not ended is a call."""
    pending = {call["group"]: call["number"] for call in calls if call["number"]}
    return sum(pending.get(name, count + 1) - 1 for name, count in counts.items())


def _lists(recorders: list[Record]) -> list[list[Record]]:
    return [recorder["entries"] for recorder in recorders if recorder.get("entries")]


def _has_ended(entry: Record) -> bool:
    return bool(entry["retired"]) or entry["state"] == COMPLETED


def _find_waiting(entries: list[Record]) -> list[Record]:
    """Return the first collective operation of each group that has not ended, and the first one with each peer."""
    first: dict[tuple[str, ...], Record] = {}
    for entry in sorted(entries, key=lambda entry: int(entry["time_created_ns"])):
        if not _has_ended(entry):
            peers = entry["profiling_name"] if entry["is_p2p"] else ""
            first.setdefault((entry["process_group"][0], peers), entry)
    return list(first.values())[:MOST_OPERATIONS]


def _describe(entry: Record, members: dict[str, Record]) -> Record:
    """Return a record of an operation; ranks are those of the job."""
    backend, _, call = entry["profiling_name"].rpartition(":")
    name, _, peers = call.partition(" ")
    group, description = entry["process_group"]
    ranks = _list_members(group, description, members)
    tensors = zip(entry["input_dtypes"], entry["input_sizes"])  # noqa: B905 - Python 3.8 has no strict
    peer = _find_peer(peers)
    return {
        "number": int(entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]),
        "name": name,
        "backend": backend,
        "data": ", ".join([f"{kind}{size}" for kind, size in tensors][:MOST_TENSORS]),
        "group": group,
        "description": description,
        "members": _render_members(ranks),
        "peer": None if peer is None else ranks[peer] if ranks else peer,
        "tag": 0,
        "frames": entry.get("frames", ()),
    }


def _describe_call(call: Record, members: dict[str, Record]) -> Record:
    """Return a record of a call of ddlrun's backend, or of that in which the main thread waits, without a number."""
    ranks = _list_members(call["group"], call["description"], members)
    return {"number": 0, "data": "", **call, "members": _render_members(ranks), "frames": ()}


def _list_members(group: str, description: str, members: dict[str, Record]) -> list[int]:
    """Return the ranks of a group; none if they are not known, or all."""
    return [] if description == DEFAULT_GROUP else _numbers(members.get(group, {}).get("ranks", ""))


def _render_members(ranks: list[int]) -> str:
    """Render ranks as the kernel renders CPUs: a large group is most often evenly spaced.

    >>> _render_members([1, 5, 9]), _render_members([0, 1, 7]), _render_members([])
    ('1-9:4', '0,1,7', '')
    """
    ordered = sorted(ranks)
    step = ordered[1] - ordered[0] if len(ordered) > 1 else 0
    if step > 0 and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        return f"{ordered[0]}-{ordered[-1]}:{step}"
    return ",".join(map(str, ordered))


def _find_peer(peers: str) -> int | None:
    """Return the second rank of a pair, which is that of the other side; None if there is no pair.

    >>> _find_peer("0->2"), _find_peer("2<-0"), _find_peer("")
    (2, 0, None)
    """
    for arrow in ARROWS:
        if arrow in peers:
            return int(peers.partition(arrow)[2])
    return None


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list in text.

    >>> _numbers("[0, 2]"), _numbers("[]")
    ([0, 2], [])
    """
    return [int(word) for word in text.strip("[]").replace(",", " ").split()]
