"""Snapshots: the processes of a rank as its keeper sees them (keeper/stacks/snapshot.py), and all ranks of a job."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ddlrun.wording import printable


class Frame(NamedTuple):
    """A function on a stack."""

    function: str
    file: str
    """The path of the file, or the library of native code."""
    line: int
    """0: unknown, as in native code."""
    source: str
    """The line of the file; empty if it cannot be read."""

    @property
    def place(self) -> str:
        """The file and the line in words, without the folder."""
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name


class ThreadStack(NamedTuple):
    """The stack of a thread, the innermost function first."""

    id: int
    """The number that the system has for the thread; 0: unknown."""
    name: str
    active: bool
    """Whether it runs, as far as is known."""
    frames: tuple[Frame, ...]


class ProcessSnapshot(NamedTuple):
    """A process of a rank; the first one is the program."""

    pid: int
    name: str
    state: str
    """The letter of /proc/PID/stat, such as R, S, D or T."""
    waits_in: str
    """The function of the kernel; empty: none, or unknown."""
    call: str
    """The system call of its first thread; empty: none, or not known."""
    target: str
    """The file that the call is about; empty: none, or not known."""
    command: tuple[str, ...]
    """The first words of its command line."""
    threads: tuple[ThreadStack, ...]
    """Empty unless the process runs Python."""
    problem: str
    """The reason for which a Python process has no stacks."""
    switches: int
    """The number of times that its first thread has begun to wait."""
    replies: int
    """The number of its replies to probes: its main thread has run Python code after each (see keeper/stacks/)."""
    time: float
    """The time of the snapshot, in seconds of its host's clock."""
    busy: float
    """The seconds in which its threads had a CPU or were ready to run; 0: not known."""
    transferred: int
    """The bytes that it, and its children that have ended, have read and written; 0: not known."""
    gpu: bool
    """Whether it has opened a GPU."""


class DeadConnection(NamedTuple):
    """A connection on which the other side acknowledges nothing."""

    local: str
    remote: str


class RecordedCollective(NamedTuple):
    """A collective operation of torch.distributed on all ranks, which has not ended."""

    number: int
    """1 for the first operation of the default group."""
    name: str
    data: str
    """The types and sizes of its tensors, such as Float[4]; empty if it has none."""
    backend: str = ""
    """The backend, such as nccl; empty if it is not known."""

    @property
    def call(self) -> tuple[int, str]:
        """The number and the name, which are equal in ranks that wait for each other."""
        return self.number, self.name


class RankSnapshot(NamedTuple):
    """The processes of a rank at one moment."""

    processes: tuple[ProcessSnapshot, ...]
    connections: tuple[DeadConnection, ...]
    collective: RecordedCollective | None = None
    """The operation in which it is; None: in none, or this is not known."""
    ended: int = 0
    """The number of operations of torch.distributed that have ended; 0: none, or not known."""
    stays: bool = False
    """Whether it is in the same operation as in an earlier snapshot, without Python code of its main thread since."""


class ExaminedRank(NamedTuple):
    """A rank of a job at one moment."""

    rank: int
    host: str
    snapshot: RankSnapshot | None = None
    """None: it has ended, or its keeper did not reply."""
    exit_code: int | None = None
    """None: it has not ended."""
    reachable: bool = True
    """Whether its host acknowledges what ddlrun sends."""


class JobSnapshot(NamedTuple):
    """All ranks of a job at one moment."""

    ranks: tuple[ExaminedRank, ...]

    @property
    def snapshots(self) -> dict[int, RankSnapshot]:
        """The snapshots of the ranks whose keepers have replied."""
        return {rank.rank: rank.snapshot for rank in self.ranks if rank.snapshot is not None}


def parse_snapshot(text: str | bytes) -> RankSnapshot:
    """Return the snapshot that a keeper has sent. Raises ValueError if it cannot be read."""
    try:
        record = json.loads(text)
        processes = tuple(_parse_process(process) for process in record["processes"])
        connections = tuple(
            DeadConnection(_text(pair["local"]), _text(pair["remote"])) for pair in record["connections"]
        )
        collective, ended = record.get("collective"), int(record.get("ended", 0))
        if collective is not None:
            collective = RecordedCollective(
                int(collective["number"]),
                _text(collective["name"]),
                _text(collective["data"]),
                _text(collective.get("backend", "")),
            )
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the snapshot cannot be read") from error
    return RankSnapshot(processes, connections, collective, ended)


def _parse_process(record: Mapping[str, Any]) -> ProcessSnapshot:
    names = ("name", "state", "waits_in", "call", "target", "problem")
    return ProcessSnapshot(
        pid=int(record["pid"]),
        command=tuple(_text(word) for word in record["command"]),
        threads=tuple(_parse_thread(thread) for thread in record["threads"]),
        switches=int(record["switches"]),
        replies=int(record["replies"]),
        time=float(record["time"]),
        busy=float(record["busy"]),
        transferred=int(record["transferred"]),
        gpu=bool(record["gpu"]),
        **{name: _text(record[name]) for name in names},
    )


def _parse_thread(record: Mapping[str, Any]) -> ThreadStack:
    frames = tuple(
        Frame(_text(frame["function"]), _text(frame["file"]), int(frame["line"]), _text(frame["source"]))
        for frame in record["frames"]
    )
    return ThreadStack(int(record["id"]), _text(record["name"]), bool(record["active"]), frames)


def _text(value: object) -> str:
    """Return a text in one line that a terminal can show."""
    return " ".join(printable(str(value)).split())
