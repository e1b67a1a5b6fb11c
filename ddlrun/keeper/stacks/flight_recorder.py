"""The operation in which a rank is, and those before it, from the flight recorders of torch.distributed.

PyTorch records the operations of gloo, and those of NCCL in a recorder of their own. The start-up hook writes the
records to a file in memory on request.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.proc_files import list_folder, read_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# As in hook/ddlrun_recorder.py. The descriptor of the pipe for requests follows.
RECORDER_FILE = "ddlrun-flight-recorder-"
DEFAULT_GROUP = "default_pg"
POLL_SECONDS = 0.01
MOST_SECONDS = 2.0
MOST_TENSORS = 3


def read_recorder(pids: Iterable[int], seconds: float) -> dict[str, Any]:
    """Return the operations of the first of a rank's processes with a recorder; see RankSnapshot in hangs/snapshot.py.

    Args:
        pids: The processes; workers that a process has forked, which come later, have its descriptors.
        seconds: The time limit.
    """
    for pid in pids:
        path, name = find_memory_file(pid, RECORDER_FILE)
        if path:
            pipe = f"/proc/{pid}/fd/{name.split()[0]}"
            return parse_recorder(_request(path, pipe, seconds=min(seconds, MOST_SECONDS)))
    return parse_recorder(b"")


def find_memory_file(pid: int, beginning: str) -> tuple[str, str]:
    """Return the path of a process's file in memory, and the rest of its name after a beginning; empty: there is none.

    A process that was forked may have another one of its parent's.
    """
    folder = f"/proc/{pid}/fd"
    for number in sorted(list_folder(folder), key=int, reverse=True):
        target = read_link(f"{folder}/{number}")
        if target.startswith(f"/memfd:{beginning}"):
            return f"{folder}/{number}", target[len(f"/memfd:{beginning}") :]
    return "", ""


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


def parse_recorder(text: bytes) -> dict[str, Any]:
    """Return the number of the last operation that has ended, and the first collective of all ranks that has not."""
    import json  # noqa: PLC0415 - in the keeper's child alone

    try:
        recorders = [recorder.get("entries", ()) for recorder in json.loads(text or b"[]")]
        waiting = (
            entry
            for entries in recorders
            for entry in entries
            if entry["process_group"][1] == DEFAULT_GROUP and not entry["retired"] and not entry["is_p2p"]
        )
        first = min(waiting, key=lambda entry: int(entry["collective_seq_id"]), default=None)
        ended = [[int(entry["record_id"]) + 1 for entry in entries if entry["retired"]] for entries in recorders]
        return {
            "ended": sum(max(numbers, default=0) for numbers in ended),
            "collective": None if first is None else _describe(first),
        }
    except (ValueError, LookupError, TypeError, AttributeError):  # another version
        return {"ended": 0, "collective": None}


def _describe(entry: dict[str, Any]) -> dict[str, Any]:
    backend, _, name = entry["profiling_name"].rpartition(":")
    tensors = zip(entry["input_dtypes"], entry["input_sizes"])  # noqa: B905 - Python 3.8 has no strict
    return {
        "number": int(entry["collective_seq_id"]),
        "name": name,
        "backend": backend,
        "data": ", ".join([f"{kind}{size}" for kind, size in tensors][:MOST_TENSORS]),
    }
