"""The position of a rank: what it does or waits for, and the line of the program where it does."""

import re
from enum import Enum
from typing import NamedTuple

from ddlrun.hangs.frames import (
    COLLECTIVES,
    LOADER,
    above,
    find_communication,
    find_named_call,
    find_own_frame,
    is_native,
    normalize,
    without_native,
)
from ddlrun.hangs.snapshot import Frame, ProcessSnapshot, RankSnapshot, RecordedOperation
from ddlrun.wording import kernel_wait

STOPPED = ("T", "t")
RUNNING_STATE = "R"
# py-spy finds no interpreter in a process that initializes or finalizes it.
NO_STACK = "no Python stack: the program begins, or has ended"
IMPORTER = "<frozen importlib"
TORCH = r"/torch/"


class Activity(Enum):
    """The kinds of positions."""

    COMMUNICATES = "communicates"
    """Waits for other ranks, or is about to."""
    GPU = "gpu"
    """Waits for its GPU, which has not ended a collective operation."""
    RUNS = "runs"
    IMPORTS = "imports"
    """Imports modules, which ends by itself."""
    LOADS = "loads"
    """Waits for the workers of a data loader."""
    LOCKED = "locked"
    """Waits for a lock, a queue or a thread of its own."""
    READS = "reads"
    WRITES = "writes"
    OPENS = "opens"
    SLEEPS = "sleeps"
    WAITS = "waits"
    """Waits for something else."""
    STOPPED = "stopped"
    """Stopped by a signal."""
    FINALIZES = "finalizes"
    """At its end: no function of the program runs any more."""
    UNKNOWN = "unknown"
    """No stacks could be read."""


# System calls in which libraries wait for other ranks.
PASSIVE_CALLS = ("", "futex", "poll", "sleep")
# Functions of PyTorch that wait for the reduction of gradients.
BACKWARD = ("backward", "_engine_run_backward")
# System call -> the position of a process that waits in it.
BY_CALL = {
    "read": Activity.READS, "write": Activity.WRITES, "open": Activity.OPENS, "openat": Activity.OPENS,
    "sleep": Activity.SLEEPS, "recvfrom": Activity.READS, "sendto": Activity.WRITES,
}  # fmt: skip


class Position(NamedTuple):
    """The position of a process."""

    activity: Activity
    call: str
    """The function of a library, or the file, that it waits for; empty if there is none."""
    frame: Frame | None
    """The innermost frame of the user's program; None if it is not known."""
    worker: str = ""
    """The position of the worker that a data loader waits for, in words; empty if there is none."""
    collective: RecordedOperation | None = None
    """The operation of torch.distributed that it waits in; None if that is not known."""

    @property
    def key(self) -> tuple[str, ...]:
        """The parts in which ranks at the same position agree."""
        frame = self.frame
        place = () if frame is None else (frame.function, frame.file, str(frame.line))
        runs = self.activity in (Activity.RUNS, Activity.UNKNOWN)
        if runs:
            return (self.activity.value, *place[:2])
        if self.activity is Activity.GPU:
            return (self.activity.value,)
        return (self.activity.value, normalize(self.call), *place)

    @property
    def waits_for_ranks(self) -> bool:
        """Whether it waits for other ranks."""
        return self.activity in (Activity.COMMUNICATES, Activity.GPU)

    @property
    def place(self) -> str:
        """The file and the line; empty if they are not known."""
        return "" if self.frame is None else self.frame.place


def locate_rank(snapshot: RankSnapshot) -> Position:
    """Return the position of a rank: that of its first process with stacks, otherwise that of its program.

    Where there are only records, the rank waits in its first operation that has not ended.
    """
    if not snapshot.processes and snapshot.operations:
        return Position(Activity.COMMUNICATES, snapshot.operations[0].name, None, collective=snapshot.operations[0])
    if not snapshot.processes:
        return Position(Activity.UNKNOWN, "", None)
    main = main_process(snapshot)
    position = locate(main)
    if position.waits_for_ranks:
        return position._replace(collective=next(iter(snapshot.operations), None))
    if _waits_for_gpu(snapshot, main, position):
        return Position(Activity.GPU, "", position.frame, collective=next(iter(snapshot.operations), None))
    if position.activity is not Activity.LOADS:
        return position
    return position._replace(worker=_describe_worker([other for other in snapshot.processes if other is not main]))


def _waits_for_gpu(snapshot: RankSnapshot, main: ProcessSnapshot, position: Position) -> bool:
    """Return True for a process that keeps a CPU busy in one call, while its GPU has not ended an operation of NCCL.

    A program may also compute on the CPU while its GPU communicates. It then runs Python code between two snapshots, or
    is in a call of a library other than PyTorch.
    """
    is_nccl = any(operation.backend == "nccl" for operation in snapshot.operations)
    inner = without_native(above(main.threads[0].frames, position.frame)) if main.threads else ()
    in_torch = all(re.search(TORCH, frame.file) for frame in inner)
    return is_nccl and snapshot.stays and main.gpu and position.activity is Activity.RUNS and in_torch


def main_process(snapshot: RankSnapshot) -> ProcessSnapshot:
    """Return the first process of a rank with stacks, otherwise its program."""
    return next((process for process in snapshot.processes if process.threads), snapshot.processes[0])


def _describe_worker(others: list[ProcessSnapshot]) -> str:
    """Return the first worker of a data loader that is in the program's own code, in words; empty if none is."""
    for process in others:
        position = locate(process)
        frame = position.frame
        if frame is not None and not re.search(LOADER, frame.file) and process.threads:
            return f"{describe(position)} in process {process.pid}"
    return ""


def locate(process: ProcessSnapshot) -> Position:
    """Return the position of a process."""
    frames = process.threads[0].frames if process.threads else ()
    own = find_own_frame(frames)
    if process.state in STOPPED:
        return Position(Activity.STOPPED, "", own)
    if own is None:
        return _locate_without_frame(process)
    inner = above(frames, own)
    if any(re.search(LOADER, frame.file) for frame in inner):
        return Position(Activity.LOADS, "", own)
    if process.state == RUNNING_STATE and any(frame.file.startswith(IMPORTER) for frame in inner):
        return Position(Activity.IMPORTS, "", own)
    communication = find_communication(inner)
    if communication is not None:
        return Position(Activity.COMMUNICATES, communication, own)
    return _locate_outside_libraries(process, own, inner)


def _locate_without_frame(process: ProcessSnapshot) -> Position:
    """Return the position of a process in which no function of Python runs."""
    if process.threads:
        return Position(Activity.FINALIZES, "", None)
    if process.call in BY_CALL and (process.target or process.call == "sleep"):
        return Position(BY_CALL[process.call], process.target, None)
    return Position(
        Activity.UNKNOWN, NO_STACK if process.problem else kernel_wait(process.waits_in) or process.call, None
    )


def _locate_outside_libraries(process: ProcessSnapshot, own: Frame, inner: tuple[Frame, ...]) -> Position:
    """Return the position of a process that no library's frame shows to communicate."""
    source = own.source
    python = without_native(inner)
    named = _named_wait(process, source, inner)
    if named is not None:
        return Position(Activity.COMMUNICATES, named, own)
    if process.call in BY_CALL:
        return Position(BY_CALL[process.call], process.target, own)
    native = [frame.function for frame in inner if is_native(frame)]
    if process.call == "futex" and _is_lock(source, python, native):
        return Position(Activity.LOCKED, _waiting_function(python), own)
    if process.state != RUNNING_STATE and any(frame.function in BACKWARD for frame in python):
        return Position(Activity.COMMUNICATES, "backward", own)
    if process.state == RUNNING_STATE or (process.threads and process.threads[0].active):
        return Position(Activity.RUNS, _waiting_function(python), own)
    call = _waiting_function(python) or process.call or kernel_wait(process.waits_in)
    return Position(Activity.WAITS, call, own)


def _is_lock(source: str, python: tuple[Frame, ...], native: list[str]) -> bool:
    """Return True for a wait for a lock of Python, a queue or a thread."""
    by_python = any(frame.file.endswith(("/threading.py", "/queue.py", "/_base.py")) for frame in python)
    by_native = any(name.startswith(("lock_", "rlock_", "PyThread_acquire_lock", "PyMutex")) for name in native)
    by_source = not python and re.search(r"\.(acquire|join|result|get)\(|^(async )?with\b", source) is not None
    return by_python or by_native or by_source


def _named_wait(process: ProcessSnapshot, source: str, inner: tuple[Frame, ...]) -> str | None:
    """Return the function that a line of source calls to communicate; None unless the process waits in it.

    Of a process that runs, the native functions tell that, where they are known.
    """
    name = find_named_call(source)
    if name is None or without_native(inner):
        return None
    if process.state == RUNNING_STATE:
        return name if normalize(name) in COLLECTIVES and not inner else None
    return name if process.call in PASSIVE_CALLS else None


def _waiting_function(python: tuple[Frame, ...]) -> str:
    """Return the function of a library that the program has called, with its module; empty if there is none."""
    if not python:
        return ""
    frame = python[-1]
    module = frame.file.rpartition("/")[2].removesuffix(".py")
    return f"{module}.{frame.function}"


WORDS = {
    Activity.COMMUNICATES: "waits in {call}",
    Activity.GPU: "waits for its GPU",
    Activity.RUNS: "is",
    Activity.IMPORTS: "imports modules",
    Activity.LOADS: "waits for its data loader",
    Activity.LOCKED: "waits for a lock",
    Activity.READS: "reads {call}",
    Activity.WRITES: "writes to {call}",
    Activity.OPENS: "opens a file",
    Activity.SLEEPS: "sleeps",
    Activity.WAITS: "waits in {call}",
    Activity.STOPPED: "is stopped by a signal",
    Activity.FINALIZES: "has left the program and is ending",
    Activity.UNKNOWN: "is in an unknown place",
}
PLURALS = (("waits", "wait"), ("is", "are"), ("reads", "read"), ("writes", "write"), ("opens", "open"),
           ("sleeps", "sleep"), ("has", "have"), ("imports", "import"), ("its", "their"))  # fmt: skip
FILES = ((r"pipe:\[\d+\]", "a pipe"), (r"socket:\[\d+\]", "a socket"), (r"$^|^$", "a file"))


def describe(position: Position, *, plural: bool = False) -> str:
    """Return a position in words: a predicate such as `waits in barrier (train.py:41)`; `plural` for several ranks."""
    text = WORDS[position.activity].format(call=_describe_call(position)).removesuffix(" in ")
    if plural:
        words = dict(PLURALS)
        text = " ".join(words.get(word, word) for word in text.split(" "))
    if position.collective is not None:
        return f"{text}{_describe_place(position)}, {position.collective.text}"
    return text + _describe_place(position) + (f", whose worker {position.worker}" if position.worker else "")


def _describe_call(position: Position) -> str:
    if position.activity not in (Activity.READS, Activity.WRITES):
        return position.call
    for pattern, words in FILES:
        if re.fullmatch(pattern, position.call):
            return words
    return position.call


def _describe_place(position: Position) -> str:
    """Return the place, with the source where the kind of position does not show what the line does."""
    frame = position.frame
    if frame is None:
        return f" ({position.call})" if position.activity is Activity.UNKNOWN and position.call else ""
    function = "" if frame.function.startswith("<") else f"{frame.function}, "
    communicates = position.activity is Activity.COMMUNICATES
    source = "" if communicates or not frame.source else f": {frame.source}"
    if position.activity is Activity.RUNS:
        inside = f" in {frame.function} ({frame.place})" if function else f" in {frame.place}"
        return inside + source
    return f" ({frame.place})" if communicates else f" ({function}{frame.place}{source})"
