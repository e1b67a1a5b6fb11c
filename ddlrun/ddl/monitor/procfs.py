"""The load of this process, and the CPUs of its host, from /proc and /sys; unknown values are nan or empty.

`ddlrun.keeper.processes` reads /proc too: stat, status and cmdline of any process, and the memory controller of the
cgroup. The two have readers of their own, because training scripts import `ddl` without the launcher, and `keeper`
starts without what `ddl` imports.
"""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.ranges import parse_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

TASKS = "/proc/self/task"
CPUS = "/sys/devices/system/cpu"
# Name of the throttled time in cpu.stat (version 2 and 1 of cgroups) -> its units per second.
THROTTLED = {"throttled_usec": 1e6, "throttled_time": 1e9}


@dataclass(frozen=True, slots=True)
class CpuCore:
    """A core: its CPUs (hardware threads), its package and its NUMA node; -1: unknown."""

    cpus: frozenset[int]
    package: int
    node: int


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """The load of a process since it began.

    on_cpu, delayed: seconds that its main thread ran, and waited for a CPU. delayed_all: seconds that all of its
    threads waited. throttled: seconds that its cgroup was stopped for its quota. switches: involuntary context
    switches.
    """

    on_cpu: float
    delayed: float
    delayed_all: float
    throttled: float
    switches: float


def read_load() -> CpuLoad:
    """Return the load of this process."""
    on_cpu, delayed = _read_schedstat("/proc/self/schedstat")
    threads = [_read_schedstat(f"{TASKS}/{thread}/schedstat")[1] for thread in _threads()]
    delays = [seconds for seconds in threads if not math.isnan(seconds)]
    return CpuLoad(
        on_cpu=on_cpu,
        delayed=delayed,
        delayed_all=sum(delays) if delays else math.nan,
        throttled=_read_throttled(),
        switches=float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw),
    )


def read_clock(cpus: Iterable[int]) -> float:
    """Return the frequency of CPUs as a share of the maximum, on average; nan if the kernel has none."""
    names = ("scaling_cur_freq", "cpuinfo_max_freq")
    texts = [[_read(f"{CPUS}/cpu{cpu}/cpufreq/{name}") for name in names] for cpu in cpus]
    clocks = [(int(current), int(maximum)) for current, maximum in texts if current and maximum]
    return sum(current for current, _ in clocks) / sum(maximum for _, maximum in clocks) if clocks else math.nan


def core_of(cpu: int) -> CpuCore:
    """Return the core of a CPU."""
    folder = f"{CPUS}/cpu{cpu}"
    siblings = parse_ranges(_read(f"{folder}/topology/thread_siblings_list")) or frozenset({cpu})
    package = _read(f"{folder}/topology/physical_package_id") or "-1"
    nodes: list[str] = []
    with suppress(OSError):
        nodes = [name[4:] for name in os.listdir(folder) if name.startswith("node") and name[4:].isdigit()]
    return CpuCore(siblings, int(package), int(min(nodes, default="-1")))


def move_threads(cpus: frozenset[int]) -> int:
    """Bind all threads of this process to CPUs and return their number. Raises OSError if the kernel refuses."""
    moved: set[str] = set()
    while new := set(_threads()) - moved:  # a thread that began meanwhile has the old binding of its creator
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
        moved |= new
    return len(moved)


def _threads() -> list[str]:
    with suppress(OSError):
        return os.listdir(TASKS)
    return []


def _read_schedstat(path: str) -> tuple[float, float]:
    """Return the seconds on a CPU and the seconds of waiting for one."""
    words = _read(path).split()
    return (int(words[0]) / 1e9, int(words[1]) / 1e9) if len(words) > 1 else (math.nan, math.nan)


def _read_throttled() -> float:
    """Return the seconds for which this process's cgroup was stopped."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (f"{'cpu' if controllers else ''}{path}", "cpu" if controllers else ""):
            for entry in _read(f"/sys/fs/cgroup/{folder}/cpu.stat").splitlines():
                name, _, value = entry.partition(" ")
                if name in THROTTLED:
                    return int(value) / THROTTLED[name]
    return math.nan


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
