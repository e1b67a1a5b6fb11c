"""What Linux tells of this process and its CPUs, read from /proc and /sys; what it does not tell is nan or empty."""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

TASKS = "/proc/self/task"
CPUS = "/sys/devices/system/cpu"
# cgroup's file -> what its cpu.stat calls the time, and how many of those are a second.
THROTTLED = {"throttled_usec": 1e6, "throttled_time": 1e9}


class CpuCore(NamedTuple):
    """A core's CPUs (hardware threads), its package and its NUMA node; -1: not told."""

    cpus: frozenset[int]
    package: int
    node: int


class CpuLoad(NamedTuple):
    """Since a process began: seconds on a CPU and seconds kept waiting for one of its main thread; seconds kept waiting
    of all its threads; seconds stopped for its cgroup's quota; switches that it did not want.
    """  # noqa: D205

    on_cpu: float
    delayed: float
    delayed_all: float
    throttled: float
    switches: float


def read_load() -> CpuLoad:
    """Return this process's load."""
    on_cpu, delayed = _schedstat("/proc/self/schedstat")
    threads = [_schedstat(f"{TASKS}/{thread}/schedstat")[1] for thread in _threads()]
    known = [value for value in threads if not math.isnan(value)]
    switches = float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
    return CpuLoad(on_cpu, delayed, sum(known) if known else math.nan, _throttled(), switches)


def read_clock(cpus: Iterable[int]) -> tuple[float, float]:
    """Return what CPUs run at and their most, in GHz, on average; nan where the kernel does not tell."""
    names = ("scaling_cur_freq", "cpuinfo_max_freq")
    found = [[_read(f"{CPUS}/cpu{cpu}/cpufreq/{name}") for name in names] for cpu in cpus]
    known = [(int(now) / 1e6, int(most) / 1e6) for now, most in found if now and most]
    if not known:
        return math.nan, math.nan
    return sum(now for now, _ in known) / len(known), sum(most for _, most in known) / len(known)


def core_of(cpu: int) -> CpuCore:
    """Return the core of a CPU."""
    folder = f"{CPUS}/cpu{cpu}"
    siblings = parse_cpus(_read(f"{folder}/topology/thread_siblings_list")) or frozenset({cpu})
    package = _read(f"{folder}/topology/physical_package_id") or "-1"
    nodes: list[str] = []
    with suppress(OSError):
        nodes = [name[4:] for name in os.listdir(folder) if name.startswith("node") and name[4:].isdigit()]
    return CpuCore(siblings, int(package), int(min(nodes, default="-1")))


def move_threads(cpus: frozenset[int]) -> int:
    """Bind all threads of this process to CPUs; return how many. Raises OSError where the kernel refuses."""
    moved: set[str] = set()
    while new := set(_threads()) - moved:  # a thread that begins meanwhile has its maker's old binding
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
        moved |= new
    return len(moved)


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of CPUs as the kernel writes it.

    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    parts = (part.partition("-") for part in filter(None, text.split(",")))
    return frozenset(cpu for low, _, high in parts for cpu in range(int(low), int(high or low) + 1))


def show_cpus(cpus: Iterable[int]) -> str:
    """Write CPUs as the kernel does, the inverse of `parse_cpus`.

    >>> show_cpus({8, 0, 1, 2})
    '0-2,8'
    """
    there = frozenset(cpus)
    starts, ends = (sorted(cpu for cpu in there if cpu + step not in there) for step in (-1, 1))
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in zip(starts, ends, strict=True))


def _threads() -> list[str]:
    with suppress(OSError):
        return os.listdir(TASKS)
    return []


def _schedstat(path: str) -> tuple[float, float]:
    words = _read(path).split()
    return (int(words[0]) / 1e9, int(words[1]) / 1e9) if len(words) > 1 else (math.nan, math.nan)


def _throttled() -> float:
    """Return the seconds for which this process's cgroup was stopped."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (f"{'cpu' if controllers else ''}{path}", "cpu" if controllers else ""):
            for said in _read(f"/sys/fs/cgroup/{folder}/cpu.stat").splitlines():
                name, _, value = said.partition(" ")
                if name in THROTTLED:
                    return int(value) / THROTTLED[name]
    return math.nan


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
