"""A snapshot of a rank: the state of its processes, with the stacks of their threads.

It is JSON: see hangs/snapshot.py. A process that cannot be read is described as far as that is possible.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.proc_files import read_text
from ddlrun.keeper.processes import descendants_of, is_python, list_processes, read_command
from ddlrun.keeper.protocol import LONG
from ddlrun.keeper.stacks.file_locks import find_holder
from ddlrun.keeper.stacks.process_facts import (
    list_links,
    list_unacknowledged,
    read_call,
    read_counters,
    read_storage,
    uses_gpu,
)
from ddlrun.keeper.stacks.python_stacks import count_switches, probe, read_stacks
from ddlrun.keeper.stacks.ras import read_ras
from ddlrun.keeper.stacks.recorder import read_recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddlrun.keeper.proc_files import ProcessStat
    from ddlrun.keeper.tcp_connections import TcpConnection

MOST_SECONDS = 15.0
RECORDER_MODULE = "/ddlrun_stacks.py"
STOPPED = ("T", "t")
MOST_PROCESSES = 16
MOST_THREADS = 24
MOST_FRAMES = 40
MOST_CHARACTERS = 200
# The beginning of a comment after code.
COMMENT = "  # "


def take_snapshot(pid: int, seconds: float, *, with_ras: bool = False) -> str:
    """Return the snapshot of a program and its descendants; all stacks together take up to some seconds.

    Args:
        pid: The program.
        seconds: The time limit.
        with_ras: Also ask NCCL, which answers for other hosts, too.
    """
    import json  # noqa: PLC0415 - in the keeper's child alone

    processes = list_processes()
    pids = [pid, *descendants_of(pid, processes)]
    end = time.monotonic() + min(seconds, MOST_SECONDS)
    shown = [pid for pid in pids if pid in processes][:MOST_PROCESSES]
    links = list_links(shown)
    storage = read_storage()
    running = (member for member in shown if processes[member].state not in STOPPED)
    recorder, recorded, threads = read_recorder(running, max(0.1, end - time.monotonic()))
    described = [
        _read_process(pid, processes[pid], end, threads if pid == recorder else [], links[pid]) for pid in shown
    ]
    connections = list_unacknowledged([link for pid in shown for link in links[pid]])
    communicators = read_ras(shown, max(0.1, end - time.monotonic())) if with_ras else []
    facts = {"connections": connections, **recorded, "communicators": communicators, "storage": storage}
    while True:
        text = json.dumps({"processes": described, **facts})
        if len(text) < LONG or not described:
            return text
        described.pop()


def _read_process(
    pid: int, stat: ProcessStat, end: float, own: list[Any], links: list[TcpConnection]
) -> dict[str, Any]:
    """Return the state of a process, with stacks if it runs Python; `own` are those that it has reported itself."""
    call = read_call(pid)
    record: dict[str, Any] = {
        "pid": pid,
        "name": stat.name,
        "state": stat.state,
        "waits_in": read_text(f"/proc/{pid}/wchan").strip("0\n"),
        **call,
        "holder": find_holder(pid, call["call"]),
        "command": [word[:MOST_CHARACTERS] for word in read_command(pid)],
        "threads": [],
        "problem": "",
        "switches": count_switches(pid),
        "replies": 0,
        "variables": [],
        "time": time.monotonic(),
        "counters": read_counters(pid, stat, links),
        "gpu": uses_gpu(pid),
    }
    if is_python(pid, stat.name):
        threads, problem = read_stacks(pid, max(0.1, end - time.monotonic()), own)
        threads = [thread for thread in threads if not _is_of_recorder(thread)]
        record["replies"], record["variables"] = probe(pid)
        record.update(threads=[_cut(thread, pid) for thread in threads[:MOST_THREADS]], problem=problem)
    return record


def _is_of_recorder(thread: dict[str, Any]) -> bool:
    """Return True for the thread of the start-up hook, which is none of the program's."""
    return bool(thread["frames"]) and thread["frames"][-1][1].endswith(RECORDER_MODULE)


def _cut(thread: dict[str, Any], pid: int) -> dict[str, Any]:
    """Return the record of a process's thread within the limits, with the source of its frames."""
    frames = [
        {
            "function": function[:MOST_CHARACTERS],
            "file": file[-MOST_CHARACTERS:],
            "line": number,
            "source": _read_source(pid, file, number),
        }
        for function, file, number in shorten(thread["frames"])
    ]
    return {**thread, "frames": frames}


def shorten(frames: list[Any]) -> list[Any]:
    """Return the innermost and the outermost frames of a stack that is too long."""
    half = MOST_FRAMES // 2
    return frames if len(frames) <= MOST_FRAMES else [*frames[:half], *frames[-half:]]


def _read_source(pid: int, file: str, number: int) -> str:
    """Return a line of a process's source file without the comment after it; empty if there is none: native code."""
    import linecache  # noqa: PLC0415 - in the keeper's child alone

    path = os.path.join(f"/proc/{pid}/cwd", file)
    line = linecache.getline(path, number) if file.endswith(".py") and os.path.isfile(path) else ""
    return line.partition(COMMENT)[0].strip()[:MOST_CHARACTERS]
