"""Parser of `ppc64_cpu --info` on POWER, and the machine that it gives together with numactl's NUMA nodes."""

import re
from collections.abc import Mapping
from typing import NoReturn

from ddlrun.errors import HostError
from ddlrun.machine import Machine
from ddlrun.machine.cpus import MOST_PUS
from ddlrun.machine.numbering import CpuSets, number_cores
from ddlrun.ranges import render_ranges

Slots = tuple[tuple[int, bool], ...]
"""A core's hardware threads: (CPU number, online)."""


def parse_ppc64_cpu(text: str, host: str) -> tuple[Slots, ...]:
    """Parse the output of `ppc64_cpu --info`: the thread slots of each core, `*` marks online ones; subcores are cores.

    Raises HostError with the line.
    """
    cores: list[Slots] = []
    all_cpus: set[int] = set()
    expected = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"\s*(Core|Subcore)\s+(\d{1,6}):((?:\s+\d{1,6}\*?)*)\s*", line)
        if not match:
            if line.strip():
                _fail(host, number, "it is not a line of a core", line)
            continue
        if match[1] == "Core" and int(match[2]) != expected:
            _fail(host, number, f"core {expected} is missing", line)
        if match[1] == "Core":
            expected += 1
        slots = tuple((int(word.rstrip("*")), word.endswith("*")) for word in match[3].split())
        cpus = {cpu for cpu, _ in slots}
        if cpus & all_cpus or len(cpus) < len(slots) or max(cpus, default=0) >= MOST_PUS:
            _fail(host, number, "a CPU is listed twice, or its number is too large", line)
        all_cpus |= cpus
        if slots:  # a core in subcores has its threads on the lines below
            cores.append(slots)
    if not cores or not text.endswith("\n"):
        _fail(host, len(text.splitlines()), "it is cut off", text[-40:])
    if len({len(slots) for slots in cores}) > 1:
        _fail(host, len(text.splitlines()), "the cores have different numbers of thread slots", render_ranges(all_cpus))
    return tuple(cores)


def machine_of(nodes: Mapping[int, frozenset[int]], slots_of_cores: tuple[Slots, ...], host: str) -> Machine:
    """Combine numactl's nodes and ppc64_cpu's cores, as PowerAI's README does by hand.

    Each NUMA node with CPUs is a package, as nothing better is known; nodes with the same CPUs are one
    package. Cores without an online thread are left out. Raises HostError where the two tools contradict
    each other.
    """
    online = frozenset(cpu for slots in slots_of_cores for cpu, is_online in slots if is_online)
    listed = frozenset().union(*nodes.values()) if nodes else frozenset()
    if online != listed:
        only_ppc64_cpu, only_numactl = (
            render_ranges(online - listed) or "none",
            render_ranges(listed - online) or "none",
        )
        problem = f"CPUs online in ppc64_cpu alone: {only_ppc64_cpu}, in numactl alone: {only_numactl}"
        raise HostError(host, f"{problem}; give `--machine`")
    packages = {cpus for cpus in nodes.values() if cpus}
    threads = [pus for slots in slots_of_cores if (pus := frozenset(cpu for cpu, is_online in slots if is_online))]
    try:
        cores = number_cores(CpuSets(threads, packages, nodes)).cores
    except ValueError as error:
        raise HostError(host, f"numactl and ppc64_cpu: {error}; give `--machine`") from error
    source = "numactl + ppc64_cpu"
    return Machine(cores, (), None, source, measured=True, numa_nodes=tuple(sorted(nodes)))


def _fail(host: str, line: int, problem: str, text: str) -> NoReturn:
    raise HostError(host, f"ppc64_cpu --info, line {line}: {problem} ({text[:60]!r}); give `--machine`")
