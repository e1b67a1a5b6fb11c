"""The work of ranks between snapshots, also where they stay at the same position: CPUs, files, connections and GPUs.

What every process does beside its work is none: heartbeats, logs and exporters of metrics use little, and the threads
that make messages progress are as busy in ranks that wait. A rank that waits for others works only if data arrives.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, starmap, takewhile
from typing import NamedTuple

from ddlrun.hangs.frames import find_communication
from ddlrun.hangs.position import Activity, Position, locate_rank, main_process
from ddlrun.hangs.snapshot import JobSnapshot, ProcessSnapshot, RankSnapshot, name_ranks
from ddlrun.units import render_byte_rate

# The least share of a CPU; examinations stop a rank for a part of the time.
LEAST_BUSY = 0.3
# A process that was not there before computes if it has had a CPU for about as long.
NEW_SECONDS = 1.0
# Kind of counter -> the least bytes per second, and what a process does. Status files are read again and again.
FLOWS = {
    "stored": (1 << 16, "transfers {rate} from or to storage"),
    "written": (1 << 16, "writes {rate}"),
    "received": (1 << 14, "receives {rate}"),
    "sent": (1 << 16, "sends {rate}"),
    "read": (1 << 19, "reads {rate}"),
}
# So many bytes between two snapshots suffice.
LEAST_BYTES = 1 << 20
LEAST_GPU = 0.1
# A loop that waits for something replies to most of the eight probes of two snapshots, and needs few pages per second.
LEAST_REPLIES, MOST_PAGES = 5, 50
BLOCKED_STATE = "D"
# Activities in a file, a pipe or a connection that delivers or takes data, however slowly.
TRANSFERS = (Activity.READS, Activity.WRITES)
STREAMS = ("pipe:", "socket:")
# No Python stack shows whether such a rank waits for others.
OBSCURE = (Activity.FINALIZES, Activity.UNKNOWN)


class Step(NamedTuple):
    """A rank in two snapshots."""

    before: RankSnapshot
    after: RankSnapshot

    @property
    def main(self) -> tuple[ProcessSnapshot, ProcessSnapshot]:
        """The rank's main process in both."""
        return main_process(self.before), main_process(self.after)

    @property
    def seconds(self) -> float:
        """The time between them."""
        before, after = self.main
        return max(after.time - before.time, 1e-9)

    def processes(self) -> Iterator[tuple[ProcessSnapshot | None, ProcessSnapshot]]:
        """Yield the rank's processes at the end, each with its earlier snapshot; None: it is new."""
        earlier = {process.pid: process for process in self.before.processes}
        for process in self.after.processes:
            yield earlier.get(process.pid), process


def find_work(snapshots: Sequence[JobSnapshot], gpus: Mapping[int, float]) -> dict[int, str]:
    """Return the ranks that work, each with a predicate, such as `computes`.

    Args:
        snapshots: Those of an examination, the earliest first.
        gpus: The share of the time in which the GPU of a rank is busy, where that is known.
    """
    jobs = [job.snapshots for job in snapshots]
    steps = {
        rank: [Step(before[rank], after[rank]) for before, after in pairwise(jobs)]
        for rank in jobs[-1]
        if all(rank in job and job[rank].processes for job in jobs)
    }
    positions = {rank: locate_rank(jobs[-1][rank]) for rank in steps}
    waiting = {rank for rank, position in positions.items() if position.waits_for_ranks}
    usual = max((_find_native(_join(steps[rank])) for rank in waiting), default=0.0)
    work = {
        rank: _find_arrival(steps[rank])
        if rank in waiting
        else _find_own_work(steps[rank], positions[rank], gpus.get(rank), usual)
        for rank in steps
    }
    return {rank: text for rank, text in work.items() if text}


def name_work(work: Mapping[int, str]) -> str:
    """Return in words which ranks work; equal work is named once.

    >>> name_work({0: "computes", 1: "computes", 2: "writes 3 MB/s"})
    'ranks 0 and 1 are busy (computes), rank 2 is busy (writes 3 MB/s)'
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in work.items():
        ranks.setdefault(text, []).append(rank)
    parts = ((name_ranks(them), "is" if len(them) == 1 else "are", text) for text, them in ranks.items())
    return ", ".join(f"{them} {verb} busy ({text})" for them, verb, text in parts)


def _join(steps: Sequence[Step]) -> Step:
    return Step(steps[0].before, steps[-1].after)


def _find_arrival(steps: Sequence[Step]) -> str:
    """Return the rate at which a rank that waits for others receives data; empty: none, or a low one."""
    rates = [_count_bytes(step.main, "received") / step.seconds for step in steps]
    return f"receives {render_byte_rate(min(rates))}" if min(rates) >= FLOWS["written"][0] else ""


def _find_own_work(steps: Sequence[Step], position: Position, gpu: float | None, usual: float) -> str:
    """Return the work of a rank that does not wait for others; `usual` is the use of native threads in those."""
    whole = _join(steps)
    busy = sorted(_find_busy(whole, position, usual), reverse=True)
    if sum(share for share, _ in busy) >= LEAST_BUSY:
        return busy[0][1]
    is_nccl = any(operation.backend == "nccl" for operation in whole.after.operations)
    if gpu is not None and gpu >= LEAST_GPU and not is_nccl:  # whose kernels keep a GPU busy while they wait
        return f"keeps its GPU busy {gpu:.0%} of the time"
    return _find_flow(steps) or _find_stream(whole) or _find_storage(whole)


def _find_busy(whole: Step, position: Position, usual: float) -> Iterator[tuple[float, str]]:
    """Yield the CPUs that parts of a rank keep busy, and what does so."""
    before, main = whole.main
    if before.pid == main.pid:
        in_gpu = main.gpu and main.replies == before.replies  # which keeps a CPU busy while it waits for a GPU
        obscure = position.activity in OBSCURE and (bool(main.threads) or main.counters.mpi)
        if not in_gpu and not obscure and not _spins(whole):
            yield cpu_share(before, main, main.pid), "computes"
        for thread in main.threads:
            if thread.id not in (0, main.pid) and not find_communication(thread.frames):
                yield cpu_share(before, main, thread.id), f"its thread {thread.name or thread.id} computes"
        yield max(0.0, _find_native(whole) - usual), "its threads compute"
    for earlier, process in whole.processes():
        ended = process.counters.ended - (earlier.counters.ended if earlier else 0)
        yield ended / whole.seconds, "its child processes compute"
        if process.pid != main.pid and not _communicates(process):
            yield (
                sum(cpu_share(earlier, process, it) for it in process.counters.threads),
                f"its {_name(process)} computes",
            )


def _name(process: ProcessSnapshot) -> str:
    return f"process {process.pid}, {process.name},"


def cpu_share(before: ProcessSnapshot | None, after: ProcessSnapshot, thread: int) -> float:
    """Return the share of the time in which a thread had a CPU, without that in which it waited for one.

    It is the same on a busy machine as on an idle one.
    """
    ran, ready = after.counters.threads.get(thread, (0.0, 0.0))
    if before is None:
        return ran / max(ran, NEW_SECONDS)
    earlier_ran, earlier_ready = before.counters.threads.get(thread, (0.0, 0.0))
    slept = after.time - before.time - (ran - earlier_ran) - (ready - earlier_ready)
    return (ran - earlier_ran) / max(ran - earlier_ran + max(slept, 0.0), 1e-9)


def _find_native(step: Step) -> float:
    """Return the CPUs that threads of a rank without Python functions keep busy."""
    before, after = step.main
    known = {thread.id for thread in after.threads} | {after.pid}
    if 0 in known or before.pid != after.pid:  # which of them communicates is not known
        return 0.0
    return sum(cpu_share(before, after, it) for it in after.counters.threads if it not in known)


def _communicates(process: ProcessSnapshot) -> bool:
    """Return True if a process beside the main one communicates, or may do so."""
    if not process.threads:
        return process.counters.mpi
    return any(find_communication(thread.frames) for thread in process.threads)


def _spins(whole: Step) -> bool:
    """Return True if the main thread runs Python code whose variables stay the same: it waits for something.

    It replies to most probes, uses no new memory, and its variables are the same in all replies.
    """
    before, after = whole.main
    new = after.replies - before.replies
    pages = (after.counters.faults - before.counters.faults) / whole.seconds
    return new >= LEAST_REPLIES and pages < MOST_PAGES and not any(starmap(have_changed, pairwise(after.variables)))


def have_changed(before: str, after: str) -> bool:
    """Return True if variables of a function differ in two replies, in both of which it is on the stack.

    >>> have_changed("1:5 2:6 7:8", "1:5 2:6 9:8"), have_changed("1:5 2:6", "1:5 2:7")
    (False, True)
    """
    pairs = [(old.split(":"), new.split(":")) for old, new in zip(before.split(), after.split(), strict=False)]
    common = takewhile(lambda pair: pair[0][0] == pair[1][0], pairs)
    return any(old != new for old, new in common)


def _find_flow(steps: Sequence[Step]) -> str:
    """Return the data that a rank's processes transfer all the time, or much of at least once; empty: neither."""
    for kind, (least, words) in FLOWS.items():
        if min(_sum_bytes(step, kind) / step.seconds for step in steps) >= least or any(
            _sum_bytes(step, kind) >= LEAST_BYTES for step in steps
        ):
            whole = _join(steps)
            _, process = max(whole.processes(), key=lambda pair: _count_bytes(pair, kind))
            text = words.format(rate=render_byte_rate(_sum_bytes(whole, kind) / whole.seconds))
            return text if process.pid == whole.main[1].pid else f"its {_name(process)} {text}"
    return ""


def _sum_bytes(step: Step, kind: str) -> int:
    return sum(_count_bytes(pair, kind) for pair in step.processes())


def _count_bytes(pair: tuple[ProcessSnapshot | None, ProcessSnapshot], kind: str) -> int:
    """Return the bytes of a process between two snapshots; 0 if they were not known at first."""
    before, after = pair
    then = 0 if before is None else getattr(before.counters, kind)
    now: int = getattr(after.counters, kind)
    return max(0, now - then) if before is None or before.counters.read else 0


def _find_stream(whole: Step) -> str:
    """Return that a pipe or connection at which the main thread is delivers or takes data."""
    before, after = whole.main
    if not after.target.startswith(STREAMS) or (before.call, before.target) != (after.call, after.target):
        return ""
    moved = _count_bytes((before, after), "first") or _count_bytes((before, after), "received")
    return "gets data" if moved and after.call in ("read", "recvfrom") else "sends data" if moved else ""


def _find_storage(whole: Step) -> str:
    """Return that a rank waits for storage, and its host transfers data."""
    before, after = whole.main
    bytes_ = whole.after.storage - whole.before.storage
    if (
        before.state != BLOCKED_STATE
        or after.state != BLOCKED_STATE
        or bytes_ < LEAST_BYTES
        or not whole.before.storage
    ):
        return ""
    return f"waits for storage, which transfers {render_byte_rate(bytes_ / whole.seconds)}"
