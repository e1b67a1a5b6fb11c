"""The position of a rank: what it does or waits for, and the line of the program where it does."""

import re
from enum import Enum
from typing import NamedTuple

from ddlrun.hangs.frames import (
    COLLECTIVES,
    LOADER,
    OF,
    above,
    find_communication,
    find_named_call,
    find_own_frame,
    find_program_frame,
    is_native,
    name_function,
    normalize,
    without_native,
)
from ddlrun.hangs.locks import name_lock
from ddlrun.hangs.snapshot import Frame, ProcessSnapshot, RankSnapshot, RecordedOperation
from ddlrun.wording import kernel_wait

STOPPED = ("T", "t")
RUNNING_STATE, DISK_STATE = "R", "D"
# Files with locks, queues and futures of Python.
LOCKING = ("/threading.py", "/queue.py", "/_base.py", "/logging/__init__.py")
SLEEP = r"\bsleep\("
# py-spy finds no interpreter in a process that initializes or finalizes it.
NO_STACK = "no Python stack: it is starting or exiting"
IMPORTER = "<frozen importlib"
TORCH = r"(?<!/ddlrun/ddl)/torch/"


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
    JOINS = "joins"
    """At its end, where it waits for a thread or process of its own."""
    READS = "reads"
    WRITES = "writes"
    OPENS = "opens"
    CONNECTS = "connects"
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
    "sleep": Activity.SLEEPS, "recvfrom": Activity.READS, "sendto": Activity.WRITES, "connect": Activity.CONNECTS,
}  # fmt: skip
# Libraries that wait for processes of their own, and the function in which such a process of Python begins.
PARENTS = r"/multiprocessing/|/concurrent/futures/process\.py$|/subprocess\.py$|/torch/utils/data/"
CHILD_BEGINS = r"/multiprocessing/process\.py$"
# Functions of Python that wait for threads and processes at its end.
AT_END = ("_shutdown", "_python_exit", "_exit_function")


class Worker(NamedTuple):
    """A thread or process that a rank waits for."""

    name: str
    position: "Position"


class Position(NamedTuple):
    """The position of a process."""

    activity: Activity
    call: str
    """The function of a library, or the file, that it waits for; empty if there is none."""
    frame: Frame | None
    """The innermost frame of the user's program; None if it is not known."""
    worker: Worker | None = None
    """The thread or process that it waits for; None: none, or not known."""
    collective: RecordedOperation | None = None
    """The operation of torch.distributed that it waits in; None if that is not known."""
    label: str = ""
    """The name that its program has given to an operation of Horovod; empty: none, or not known."""

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
        return (self.activity.value, normalize(self.call), self.label, *place)

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
    inner = above(main.threads[0].frames, position.frame) if main.threads else ()
    if position.worker is None and any(re.search(PARENTS, frame.file) for frame in inner):
        return position._replace(worker=_find_worker([other for other in snapshot.processes if other is not main]))
    return position


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


def _find_worker(others: list[ProcessSnapshot]) -> Worker | None:
    """Return the first child of a rank that is in the program's own code, or runs another program."""
    for process in others:
        frames = process.threads[0].frames if process.threads else ()
        begin = next((frame for frame in frames[::-1] if re.search(CHILD_BEGINS, frame.file)), None)
        if process.threads and find_program_frame(above(frames, begin)) is not None:
            return Worker(f"process {process.pid}", locate(process))
        if not process.threads and not process.problem:
            return Worker(f"process {process.pid} ({process.name})", locate(process))
    return None


def locate(process: ProcessSnapshot) -> Position:
    """Return the position of a process."""
    frames = process.threads[0].frames if process.threads else ()
    own = find_own_frame(frames)
    if process.state in STOPPED:
        return Position(Activity.STOPPED, "", own)
    if own is None:
        return _locate_without_frame(process)
    if any(frame.function in AT_END for frame in frames) and find_program_frame(frames) is None:
        return _locate_at_end(process)
    return _locate_in_program(process, own, above(frames, own))


def _locate_in_program(process: ProcessSnapshot, own: Frame, inner: tuple[Frame, ...]) -> Position:
    """Return the position of a process in the user's program; `inner` are the frames that its innermost has called."""
    imports = any(frame.file.startswith(IMPORTER) for frame in inner)
    if imports and process.state in (RUNNING_STATE, DISK_STATE):
        return Position(Activity.IMPORTS, "", own)
    if not imports and any(re.search(LOADER, frame.file) for frame in inner):
        return Position(Activity.LOADS, "", own)
    communication = None if imports else find_communication(inner)
    if communication is not None:
        call, _, label = communication.partition(OF)
        return Position(Activity.COMMUNICATES, call, own, label=label)
    return _locate_outside_libraries(process, own, inner)


def _locate_at_end(process: ProcessSnapshot) -> Position:
    """Return the position of a process whose main thread waits for others at its end."""
    for thread in process.threads[1:]:
        if find_program_frame(thread.frames) is not None:
            alone = process._replace(threads=(thread,), state="R" if thread.active else "S", call="", waits_in="")
            own, name = locate(alone), f'thread "{thread.name}"' if thread.name else "a thread"
            return Position(Activity.JOINS, "", own.frame, Worker(name, own))
    return Position(Activity.FINALIZES, "", None)


def _locate_without_frame(process: ProcessSnapshot) -> Position:
    """Return the position of a process in which no function of Python runs."""
    if process.threads:
        return Position(Activity.FINALIZES, "", None)
    if _find_call(process) in BY_CALL and (process.target or _find_call(process) == "sleep"):
        return Position(BY_CALL[_find_call(process)], process.target, None)
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
    native = [frame.function for frame in inner if is_native(frame)]
    call = _find_call(process)
    tries = process.holder is not None and process.state != RUNNING_STATE and re.search(SLEEP, source) is None
    if call == "lock" or tries or _is_lock(process, source, python, native):
        return Position(Activity.LOCKED, name_lock(process, python), own)
    if call in BY_CALL:
        return Position(BY_CALL[call], process.target, own)
    if process.state != RUNNING_STATE and any(frame.function in BACKWARD for frame in python):
        return Position(Activity.COMMUNICATES, "backward", own)
    if process.state == RUNNING_STATE or (process.threads and process.threads[0].active):
        return Position(Activity.RUNS, name_function(python), own)
    return Position(Activity.WAITS, name_function(python) or call or kernel_wait(process.waits_in), own)


def _find_call(process: ProcessSnapshot) -> str:
    """Return the system call of a process; where the system does not show it, by the function of the kernel."""
    return process.call or ("sleep" if kernel_wait(process.waits_in) == "sleep" else "")


def _is_lock(process: ProcessSnapshot, source: str, python: tuple[Frame, ...], native: list[str]) -> bool:
    """Return True for a wait for a lock of Python, a queue or a thread."""
    by_python = any(frame.file.endswith(LOCKING) for frame in python)
    if process.call != "futex":
        return by_python and not process.call and process.state != RUNNING_STATE
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
