"""Dumps of a job that hangs: files per rank of PyTorch's flight recorder, and of `py-spy dump`.

They become the snapshots that keepers take of a running job. A dump may come from a stranger: a pickle is read without
any class or function.
"""

import io
import json
import pickle
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.hangs.examination import Examination
from ddlrun.hangs.frames import FRAMEWORKS
from ddlrun.hangs.snapshot import ExaminedRank, JobSnapshot, RankSnapshot
from ddlrun.hangs.snapshot_parsing import build_snapshot
from ddlrun.hangs.verdict import judge
from ddlrun.keeper.stacks.python_stacks import parse_dump
from ddlrun.keeper.stacks.recorder import summarize_recorders

PICKLE, PROCESS = b"\x80", b"Process "
# The rank in the name of a file: that after the word, or else the last number.
RANK_IN_NAME = (r".*rank[_.-]?(\d+)", r".*?(\d+)(?:\.[A-Za-z]+)*$")
THREAD = r'Thread (?:(\d+)|\S+) \((active|idle)[^)]*\)(?:: "(.*)")?'
FRAME = r"    (\S.*) \((.+?)(?::(\d+))?\)"
STANDARD_FOLDER, INSTALLED_FOLDER = "/lib/python3/", "/site-packages/"
Record = Mapping[str, Any]


class Dump(NamedTuple):
    """The contents of a file."""

    recorders: tuple[Record, ...] = ()
    threads: tuple[Record, ...] = ()
    """In the order of the file."""


class _Unpickler(pickle.Unpickler):
    """Read dictionaries, lists, tuples, numbers and texts, and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse any class and function."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no flight recorder writes")


def find_rank(name: str) -> int | None:
    """Return the rank in the name of a file; None if there is none.

    >>> find_rank("nccl_trace_rank_12"), find_rank("rank3.h1.txt"), find_rank("stacks-7.json"), find_rank("notes")
    (12, 3, 7, None)
    """
    match = next(filter(None, (re.match(pattern, name) for pattern in RANK_IN_NAME)), None)
    return None if match is None else int(match[1])


def parse_dump_file(data: bytes) -> Dump | None:
    """Return the contents of a file; None if it is none of these dumps. Raises ValueError if it cannot be read."""
    if data.startswith(PICKLE):
        return Dump(recorders=(_read_pickle(data),))
    if data.startswith(PROCESS):
        return Dump(threads=tuple(_parse_stacks(data.decode(errors="replace"))))
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    recorders = [item for item in (value if isinstance(value, list) else [value]) if _is_recorder(item)]
    return Dump(tuple(recorders), tuple(parse_dump(data))) if recorders or parse_dump(data) else None


def _is_recorder(value: object) -> bool:
    return isinstance(value, dict) and {"entries", "pg_config"} & value.keys() != set()


def _read_pickle(data: bytes) -> Record:
    try:
        value = _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # a pickle may raise any
        raise ValueError(f"the pickle cannot be read: {error}") from error
    if not _is_recorder(value):
        raise ValueError("the pickle is not from a flight recorder")
    return dict(value)


def _parse_stacks(text: str) -> Iterable[Record]:
    r"""Yield the threads in the output of `py-spy dump`, of the first process alone.

    >>> stacks = 'Process 7: python a.py\n\nThread 7 (idle): "Main"\n    recv (torch/x.py:9)\n    <module> (a.py:3)'
    >>> [(frame[0], frame[1], frame[2]) for frame in next(iter(_parse_stacks(stacks)))["frames"]]
    [('recv', '/site-packages/torch/x.py', 9), ('<module>', 'a.py', 3)]
    """
    first, *_ = text[len(PROCESS) :].split("\nProcess ")
    for part in re.split(r"^(?=Thread )", first, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        match = re.fullmatch(THREAD, head)
        frames = [frame for frame in (re.fullmatch(FRAME, line) for line in lines) if frame]
        if match is not None:
            yield {
                "id": int(match[1] or 0),
                "name": match[3] or "",
                "active": match[2] == "active",
                "frames": [(frame[1], _lengthen(frame[2]), int(frame[3] or 0)) for frame in frames],
            }


def _lengthen(path: str) -> str:
    """Return a path with the beginning that tells libraries apart, which py-spy has left out.

    >>> _lengthen("threading.py"), _lengthen("torch/_ops.py"), _lengthen("train.py")
    ('/lib/python3/threading.py', '/site-packages/torch/_ops.py', 'train.py')
    """
    if path.startswith(("/", "<")):
        return path
    if path.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names:
        return STANDARD_FOLDER + path
    return INSTALLED_FOLDER + path if re.match(FRAMEWORKS, f"/{path}") else path


def join_dumps(dumps: Iterable[Dump]) -> RankSnapshot:
    """Return the snapshot that the dumps of a rank make. Raises ValueError if records are of an unknown version."""
    parts = list(dumps)
    recorders = [dict(recorder) for part in parts for recorder in part.recorders]
    try:
        summary = summarize_recorders(recorders)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("the records are of an unknown version of PyTorch") from error
    threads = [thread for part in parts for thread in part.threads] or _stack_of_operation(summary)
    processes = [_describe_process(threads, summary)] if threads or not summary["operations"] else []
    return build_snapshot({"processes": processes, "connections": [], **summary})


def _stack_of_operation(summary: Record) -> list[Record]:
    """Return the stack with which the first operation that has not ended began; nothing if it is not recorded."""
    operation: Record = next(iter(summary["operations"]), {})
    frames = [(frame["name"], frame["filename"], frame["line"]) for frame in operation.get("frames", ())]
    # It is in PyTorch, whichever function has called that.
    inner = (operation.get("name", ""), f"{INSTALLED_FOLDER}torch/distributed/", 0)
    return [{"id": 0, "name": "", "active": False, "frames": [inner, *frames]}] if frames else []


def _describe_process(threads: Sequence[Record], summary: Record) -> Record:
    """Return the record of a rank's process as a keeper makes it, as far as a dump has that."""
    threads = sorted(threads, key=lambda thread: (thread["name"] != "MainThread", thread["id"]))
    active = bool(threads) and threads[0]["active"]
    return {
        "pid": threads[0]["id"] if threads else 0, "name": "python", "state": "R" if active else "S", "waits_in": "",
        "call": "", "target": "", "command": [], "threads": [_name_frames(thread) for thread in threads],
        "problem": "", "switches": 0, "replies": 0, "time": 0,
        "gpu": any(operation["backend"] == "nccl" for operation in summary["operations"]),
    }  # fmt: skip


def _name_frames(thread: Record) -> Record:
    frames = [{"function": name, "file": file, "line": line, "source": ""} for name, file, line in thread["frames"]]
    return {**thread, "frames": frames}


def list_members(dumps: Iterable[Dump]) -> frozenset[int]:
    """Return the ranks that recorders name as members of groups."""
    recorders = (recorder for dump in dumps for recorder in dump.recorders)
    configs = [config for recorder in recorders for config in recorder.get("pg_config", {}).values()]
    return frozenset(int(rank) for config in configs for rank in re.findall(r"\d+", str(config.get("ranks", ""))))


def examine_dumps(dumps: Mapping[int, Sequence[Dump]]) -> Examination:
    """Return the examination of a job by the dumps of its ranks. Raises ValueError if one cannot be read."""
    ranks = sorted(dumps.keys() | list_members(dump for parts in dumps.values() for dump in parts))
    snapshots = {rank: join_dumps(parts)._replace(stays=True) for rank, parts in dumps.items()}
    job = JobSnapshot(tuple(ExaminedRank(rank, "", snapshots.get(rank)) for rank in ranks), dumped=True)
    return Examination(job, judge(job), moved=False, computes=False)
