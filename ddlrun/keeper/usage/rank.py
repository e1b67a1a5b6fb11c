"""The resources that a rank's processes use, read from /proc at an interval.

A report has the fields of USAGE_FIELDS, separated by spaces. The interval grows where reading them would take more
than SHARE of a core.
"""

from __future__ import annotations

import os
import time
from _operator import sub  # operator itself takes a file more

from ddlrun.keeper import protocol
from ddlrun.keeper.proc_files import list_cgroups, list_folder, parse_counters, read_file, read_stat
from ddlrun.keeper.processes import SHELLS
from ddlrun.keeper.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ddlrun.keeper.connection import LauncherConnection
    from ddlrun.keeper.usage.gpus import GpuUsageReader
    from ddlrun.keeper.usage.host import HostUsageReader
    from ddlrun.wire.loop import Loop

# The most of a core that reports take.
SHARE = 0.001
# New processes, cgroups and cores are looked for at every report of this number.
REFRESH = 5
MOST_PROCESSES = 64
MOST_THREADS = 256
LONGEST_FUNCTION = 40
# The errors where a file of /proc is not as proc(5) describes it: on this kernel, it has another content.
UNREADABLE = (OSError, ValueError, IndexError, KeyError)
# The counters of a process that are read from stat and io.
COUNTED = ("user_ms", "system_ms", "major_faults", "input_bytes", "read_bytes", "written_bytes")
# The states of threads that are counted.
STATES = {b"R": "running", b"D": "blocked"}
NANOSECONDS_PER_MS = 1_000_000
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024

USAGE_FIELDS = (
    "age_ms", "ms", "cores", "user_ms", "system_ms", "wait_ms", "switches", "processes", "threads", "running",
    "blocked", "rss_kib", "anonymous_kib", "major_faults", "input_bytes", "read_bytes", "written_bytes", "periods",
    "throttled", "reclaims",
)  # fmt: skip
"""The numbers of a report, in their order. The state of the main thread and the kernel function of its wait follow.

age_ms: Time since the program's start.
ms: The time that the report covers.
cores: CPUs that the main process may use.
wait_ms: Time in which threads were ready to run and no CPU was free for them.
switches: The number of times that a thread got a CPU.
running, blocked: Threads that run, and that wait for input or output without accepting signals, at the time of the
    report.
anonymous_kib: The part of rss_kib that no file or shared memory backs.
input_bytes: Bytes that system calls have read, also from pipes and from the page cache.
read_bytes, written_bytes: Bytes from and to storage.
periods, throttled: The periods of the CPU quota, and those in which it was used up.
reclaims: The number of times that memory was taken back, as the limit of a cgroup was reached.
"""


class UsageReporter(Task):
    """The reports of a rank, and of its host."""

    _connection: LauncherConnection
    _on_problem: Callable[[str | Exception], None]

    host: HostUsageReader | None = None
    gpus: GpuUsageReader | None = None
    """The readers of the host's use, which is reported, too, where they are set."""

    def __init__(self, guard: int, interval: float, started_at: float) -> None:
        """Begin; the first report is due after one interval. `guard` is the process above the program."""
        self._usage = ProcessUsage(guard)
        self._interval, self._started_at = interval, started_at
        self._reported_at = time.monotonic()
        self._next = self._reported_at + interval

    def begin(self, loop: Loop, connection: LauncherConnection, on_problem: Callable[[str | Exception], None]) -> None:
        """Send the reports; `on_problem` takes the reason why there are none from now on, of the GPUs or at all."""
        self._connection, self._on_problem = connection, on_problem
        self.join(loop)

    def deadline(self) -> float:
        """Return the time of the next report."""
        return self._next

    def on_time(self, now: float) -> None:
        """Send a report; leave it out if ddlrun has to read something first. The next one covers its time, too."""
        if self._connection.unsent:
            self._next = now + self._interval
            return
        try:
            for kind, text in self.report(now):
                self._connection.send(kind, text.encode(errors="replace"))
            problem = "" if self.gpus is None else self.gpus.take_problem()
            if problem:
                self._on_problem(f"no samples of the GPUs of {os.uname().nodename}: {problem}")
        except UNREADABLE as error:
            self.leave()
            self._on_problem(error)

    def report(self, now: float) -> Iterator[tuple[bytes, str]]:
        """Yield the messages that are due."""
        before = time.thread_time()
        elapsed = round((now - self._reported_at) * 1000)
        yield protocol.USAGE, f"{round((now - self._started_at) * 1000)} {elapsed} {self._usage.take()}"
        if self.host is not None:
            gpus = "" if self.gpus is None else self.gpus.take()
            yield protocol.HOST_USAGE, f"{elapsed} {self.host.take()}\n{gpus}".rstrip("\n")
        self._reported_at = now
        self._next = now + max(self._interval, (time.thread_time() - before) / SHARE)

    def leave(self) -> None:
        """End, with the process that reads the GPUs."""
        super().leave()
        if self.gpus is not None:
            self.gpus.stop()


class QuotaPeriods:
    """The periods of the CPU quotas that apply to a process."""

    def __init__(self, pid: int) -> None:
        """Find the cgroups of the process that have a quota."""
        self._files = [f"{folder}/cpu.stat" for folder in list_cgroups(pid, "cpu") if _has_quota(folder)]
        self._before = {path: _read_periods(path) for path in self._files}

    def take(self) -> tuple[int, int]:
        """Return the periods since the last call, and those that were throttled, of the most throttled cgroup."""
        most = (0, 0)
        for path in self._files:
            now, before = _read_periods(path), self._before[path]
            self._before[path] = now
            periods, throttled = now[0] - before[0], now[1] - before[1]
            if periods > 0 and throttled >= most[1]:
                most = (periods, throttled)
        return most


def _read_periods(path: str) -> tuple[int, int]:
    counters = parse_counters(read_file(path))
    return counters.get(b"nr_periods", 0), counters.get(b"nr_throttled", 0)


def _has_quota(folder: str) -> bool:
    """Return True if a cgroup has a CPU quota; v2 has it in cpu.max, v1 in cpu.cfs_quota_us."""
    limit = read_file(f"{folder}/cpu.max") or read_file(f"{folder}/cpu.cfs_quota_us")
    return limit[:1].isdigit()


class MemoryReclaims:
    """The times that the limits of a process's memory cgroups were reached."""

    def __init__(self, pid: int) -> None:
        self._folders = list_cgroups(pid, "memory")
        self._before = self._read()

    def take(self) -> int:
        """Return the number since the last call."""
        before, self._before = self._before, self._read()
        return self._before - before

    def _read(self) -> int:
        events = [parse_counters(read_file(f"{folder}/memory.events")) for folder in self._folders]  # version 2
        failures = [read_file(f"{folder}/memory.failcnt") for folder in self._folders]  # version 1
        return sum(it.get(b"max", 0) + it.get(b"high", 0) for it in events) + sum(map(int, filter(None, failures)))


class ProcessUsage:
    """The use of resources by the descendants of a process."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._reports = 0
        self._processes: dict[int, Process] = {}
        self._main = 0
        self._quota, self._memory = QuotaPeriods(0), MemoryReclaims(0)
        self._refresh()

    def take(self) -> str:
        """Return the fields of a report from `cores` on, of the time since the last call."""
        if self._reports % REFRESH == 0 or self._main not in self._processes:
            self._refresh()
        self._reports += 1
        total = no_usage()
        total["processes"] = len(self._processes)
        for pid, process in list(self._processes.items()):
            if not process.read(total):
                del self._processes[pid]
        main = self._processes.get(self._main)
        state, function = ("Z", "-") if main is None else (main.state, read_function(self._main))
        total["wait_ms"] //= NANOSECONDS_PER_MS  # threads have added nanoseconds
        numbers = (self._cores, *total.values(), *self._quota.take(), self._memory.take())
        return f"{join_numbers(numbers)} {state} {function}"

    def _refresh(self) -> None:
        """Look for new processes, for the main one, and for its cores and cgroups."""
        pids = list_tree(self._root)
        self._processes = {pid: self._processes.get(pid) or Process(pid) for pid in pids}
        main = find_main(pids)
        if main != self._main:
            self._main, self._quota, self._memory = main, QuotaPeriods(main), MemoryReclaims(main)
        try:
            self._cores = len(os.sched_getaffinity(main))
        except OSError:  # it has ended
            self._cores = 0


class Process:
    """The counters of one process, whose use counts from now on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._folder = pid, f"/proc/{pid}"
        self.state = "?"
        """The state of its main thread."""
        self._before = (0, 0, 0, 0, 0, 0)
        self._threads: dict[str, tuple[bytes, bytes]] = {}
        """The content of schedstat, and the state, of each thread."""
        self.read(no_usage())

    def read(self, total: dict[str, int]) -> bool:
        """Add the use since the last call to the sums; return False if the process has ended."""
        stat = read_stat(self._pid)
        if stat is None:
            return False
        self.state = stat.state
        words = read_file(f"{self._folder}/io").split()
        transferred = (int(words[1]), int(words[9]), int(words[11])) if words else self._before[3:]
        before, self._before = self._before, (*stat.usage, *transferred)
        for name, increase in zip(COUNTED, map(sub, self._before, before)):  # noqa: B905 - of one length
            total[name] += increase
        memory = read_file(f"{self._folder}/statm").split()
        if memory:
            total["rss_kib"] += int(memory[1]) * PAGE_KIB
            total["anonymous_kib"] += (int(memory[1]) - int(memory[2])) * PAGE_KIB
        self._read_threads(total)
        return True

    def _read_threads(self, total: dict[str, int]) -> None:
        names = list_folder(f"{self._folder}/task")
        total["threads"] += len(names)
        threads = {}
        for name in names[:MOST_THREADS]:
            before, state = self._threads.get(name, (b"0 0 0", b""))
            schedstat = read_file(f"{self._folder}/task/{name}/schedstat")
            if schedstat != before or not state:  # a thread that has not run is in the same state
                state = read_file(f"{self._folder}/task/{name}/stat").rpartition(b")")[2][1:2]
                _, wait_ns, switches = map(sub, map(int, (schedstat or before).split()), map(int, before.split()))
                total["wait_ms"] += wait_ns
                total["switches"] += switches
            if state in STATES:
                total[STATES[state]] += 1
            threads[name] = schedstat or before, state
        self._threads = threads


def join_numbers(numbers: Sequence[int]) -> str:
    """Join the numbers of a report; a use is negative where another process has got the number of one that ended.

    >>> join_numbers([7, -3, 0])
    '7 0 0'
    """
    return " ".join(str(max(0, number)) for number in numbers)


def no_usage() -> dict[str, int]:
    """Return the sums over no process, of the fields of a report from `user_ms` to `written_bytes`."""
    return dict.fromkeys(USAGE_FIELDS[3:-3], 0)


def list_tree(root: int) -> list[int]:
    """Return the descendants of a process, parents before their children."""
    pids: list[int] = []
    pending = [root]
    while pending and len(pids) < MOST_PROCESSES:
        pid = pending.pop(0)
        if pid != root:
            pids.append(pid)
        for thread in list_folder(f"/proc/{pid}/task")[:MOST_THREADS]:
            pending += map(int, read_file(f"/proc/{pid}/task/{thread}/children").split())
    return pids


def find_main(pids: list[int]) -> int:
    """Return the first process that is not a shell."""
    for pid in pids:
        if read_file(f"/proc/{pid}/comm").decode(errors="replace").strip() not in SHELLS:
            return pid
    return pids[0] if pids else 0


def read_function(pid: int) -> str:
    """Return the kernel function in which a process's main thread waits, `-` if it does not wait or that is unknown."""
    function = read_file(f"/proc/{pid}/wchan").decode(errors="replace").strip().strip("0")
    return function.split()[0][:LONGEST_FUNCTION] if function.split() else "-"
