"""The processor time of commands, with that of the processes which they leave to sshd and to init."""

import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import Sample, run

TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
SETTLING_SECONDS = 60.0


class ProcessTimes(NamedTuple):
    """The parent of a process, whether it has ended, and its ticks with those of its children that were reaped."""

    parent: int
    ended: bool
    ticks: int


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent ends, such as daemons."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processor_time(argv: Sequence[str]) -> Sample:
    """Return a sampler of the processor time in ms of a command and of all that it causes below this process."""

    def sample() -> float:
        running, before = _usage()
        run(argv)
        deadline = time.monotonic() + SETTLING_SECONDS
        while _usage()[0] - running and time.monotonic() < deadline:
            time.sleep(0.05)
        return (_usage()[1] - before) * 1000

    return sample


def _usage() -> tuple[set[int], float]:
    """Return the descendants of this process that have not ended, and the seconds of all descendants."""
    processes = dict(_list_processes())
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    below, waiting = set[int](), [os.getpid()]
    while waiting:
        new = children.get(waiting.pop(), [])
        below.update(new)
        waiting += new
    own = os.times()
    ticks = sum(processes[pid].ticks for pid in below)
    return {pid for pid in below if not processes[pid].ended}, ticks / TICKS + own.children_user + own.children_system


def _list_processes() -> list[tuple[int, ProcessTimes]]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks = sum(map(int, words[11:15]))
        processes.append((int(path.parent.name), ProcessTimes(int(words[1]), words[0] == "Z", ticks)))
    return processes
