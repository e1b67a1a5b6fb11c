"""What `ppc64_cpu --info` prints on POWER -> cores; with numactl's NUMA nodes -> Machine."""

import re
from collections.abc import Mapping
from typing import NoReturn

from ddlrun.errors import UnreachableError
from ddlrun.machine import Machine
from ddlrun.machine.cpus import MOST_PUS, cpu_list, number_cores

Slots = tuple[tuple[int, bool], ...]
"""A core's hardware threads: (CPU number, on line)."""


def parse_ppc64_cpu(text: str, host: str) -> tuple[Slots, ...]:
    """Parse `ppc64_cpu --info`: each core's thread slots, `*` after those on line; subcores are cores.

    Raises UnreachableError with the line.
    """
    cores: list[Slots] = []
    seen: set[int] = set()
    expected = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"\s*(Core|Subcore)\s+(\d{1,6}):((?:\s+\d{1,6}\*?)*)\s*", line)
        if not match:
            if line.strip():
                _fail(host, number, "no line of a core", line)
            continue
        if match[1] == "Core" and int(match[2]) != expected:
            _fail(host, number, f"core {expected} is missing", line)
        expected += match[1] == "Core"
        slots = tuple((int(word.rstrip("*")), word.endswith("*")) for word in match[3].split())
        cpus = {cpu for cpu, _ in slots}
        if cpus & seen or len(cpus) < len(slots) or max(cpus, default=0) >= MOST_PUS:
            _fail(host, number, "a CPU stands there twice, or is none", line)
        seen |= cpus
        if slots:  # a core in subcores has its threads on the lines below
            cores.append(slots)
    if not cores or not text.endswith("\n"):
        _fail(host, len(text.splitlines()), "it ends too soon", text[-40:])
    if len({len(slots) for slots in cores}) > 1:
        _fail(host, len(text.splitlines()), "the cores have different numbers of thread slots", cpu_list(seen))
    return tuple(cores)


def machine_of(nodes: Mapping[int, frozenset[int]], cores: tuple[Slots, ...], host: str) -> Machine:
    """Put numactl's nodes and ppc64_cpu's cores together, as PowerAI's README does by hand.

    A package is a NUMA node with CPUs (nothing better is known here), nodes of the same CPUs count once;
    its thread slots, divided by those of a core, are its cores, numbered from the package's first. Cores
    without a thread on line are not there. Raises UnreachableError where the two contradict each other.
    """
    online = frozenset(cpu for slots in cores for cpu, on in slots if on)
    listed = frozenset().union(*nodes.values()) if nodes else frozenset()
    if online != listed:
        raise UnreachableError(
            f"host {host}: ppc64_cpu has CPUs {cpu_list(online - listed) or '-'} on line that numactl does not list, "
            f"numactl lists {cpu_list(listed - online) or '-'} that are not; give --machine"
        )
    packages = {cpus for cpus in nodes.values() if cpus}
    threads = [pus for slots in cores if (pus := frozenset(cpu for cpu, on in slots if on))]
    try:
        numbered = number_cores(threads, packages, nodes)
    except ValueError as error:
        raise UnreachableError(f"host {host}: numactl and ppc64_cpu: {error}; give --machine") from error
    source = "numactl + ppc64_cpu"
    return Machine(numbered, (), None, source, measured=True, numa_nodes=tuple(sorted(nodes)))


def _fail(host: str, line: int, what: str, text: str) -> NoReturn:
    raise UnreachableError(f"host {host}: ppc64_cpu --info, line {line}: {what} ({text[:60]!r}); give --machine")
