"""Cores and NUMA nodes in the output of the /sys probe, numbered as hwloc numbers them there."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddlrun.machine import Core, MachineNote, MachineNoteCode, machine_note
from ddlrun.machine.cpus import parse_cpu_list, parse_cpu_mask
from ddlrun.machine.numa_groups import near_groups
from ddlrun.machine.numbering import Allowed, Cpus, CpuSets, Numbering, number_cores
from ddlrun.machine.sysfs_script import ProbeOutput

# Objects between a package and the machine or a core, in hwloc's order.
_GROUPS = ("cluster_cpus", "die_cpus", "book_siblings", "drawer_siblings")


class SysfsCores(NamedTuple):
    """The numbered cores, also as hwloc before 2.2 numbers them, the NUMA nodes, whether there are packages, notes."""

    numbering: Numbering
    complete_cores: tuple[Core, ...]
    numa_nodes: tuple[int, ...]
    packaged: bool
    notes: tuple[MachineNote, ...]


def read_cores(output: ProbeOutput) -> SysfsCores:
    """Return a host's cores. Raises ValueError on unexpected contents."""
    files = output.files
    described = frozenset(_index(path) for path in files if path.startswith("cpu/cpu") and "/topology/" in path)
    online = described & parse_cpu_list(files["cpu/online"]) if "cpu/online" in files else described
    packages = _topology(files, "core_siblings", online)
    threads = _topology(files, "thread_siblings", online)
    nodes = _nodes(files, online)
    sets = CpuSets(
        cores=_cores(threads, files, online),
        packages=packages or {online},
        nodes=nodes,
        groups=[*_groups(files, online), *_near_nodes(files, nodes)],
    )
    allowed = _allowed(output)
    numa_nodes = parse_cpu_list(files["node/online"]) if "node/online" in files else frozenset(nodes)
    if allowed.nodes is not None:
        numa_nodes &= allowed.nodes
    numbering = number_cores(sets, allowed)
    complete = _complete_cores(sets, allowed) if _has_cgroup_2(output) else ()
    if _indexes(complete).items() >= _indexes(numbering.cores).items():
        complete = ()
    codes = {MachineNoteCode.CORES_ARE_THREADS: not threads, MachineNoteCode.CORES_HIDDEN: bool(complete)}
    return SysfsCores(
        numbering=numbering,
        complete_cores=complete,
        numa_nodes=tuple(sorted(numa_nodes)),
        packaged=bool(packages),
        notes=tuple(machine_note(code) for code, applies in codes.items() if applies),
    )


def _has_cgroup_2(output: ProbeOutput) -> bool:
    return any(words[:2] == ["@cpuset", "cgroup2"] for words in output.records)


def _complete_cores(sets: CpuSets, allowed: Allowed) -> tuple[Core, ...]:
    """Return all cores; those that a cpuset hides are not usable."""
    lists = [cpus for cpus in (allowed.cpus, allowed.affinity) if cpus is not None]
    affinity = frozenset.intersection(*lists) if lists else None
    return number_cores(sets, Allowed(affinity=affinity)).cores


def _indexes(cores: tuple[Core, ...]) -> dict[int, tuple[int, int, int]]:
    """Return the logical indexes of the core of each CPU."""
    return {pu.os_index: (core.logical_index, core.package, core.index_in_package) for core in cores for pu in core.pus}


def _index(path: str) -> int:
    """Return the number of a CPU or a node: that of its folder."""
    return int(path.split("/")[1].lstrip("cpunode"))


def _read_set(files: Mapping[str, str], list_path: str, mask_path: str) -> Cpus | None:
    if list_path in files:
        return parse_cpu_list(files[list_path])
    return parse_cpu_mask(files[mask_path]) if mask_path in files else None


def _topology(files: Mapping[str, str], name: str, online: Cpus) -> set[Cpus]:
    """Return the different sets of a file of each CPU."""
    paths = (f"cpu/cpu{cpu}/topology/{name}" for cpu in online)
    sets = (_read_set(files, f"{path}_list", path) for path in paths)
    return {cpus & online for cpus in sets if cpus} - {frozenset()}


def _cores(threads: set[Cpus], files: Mapping[str, str], online: Cpus) -> set[Cpus]:
    """Return the CPUs of each core; those without siblings are cores, and so are the siblings in AMD's modules."""
    first_module = min((cpus for cpus in threads if len(cpus) > 1), key=min, default=frozenset[int]())
    numbers = {files.get(f"cpu/cpu{cpu}/topology/core_id") for cpu in sorted(first_module)[:2]}
    listed = set() if len(numbers) > 1 else threads
    alone = online.difference(*listed)
    return listed | {frozenset({cpu}) for cpu in alone}


def _groups(files: Mapping[str, str], online: Cpus) -> Iterator[Cpus]:
    """Yield the CPUs of other objects: clusters, dies, books, drawers, and caches."""
    for name in _GROUPS:
        yield from _topology(files, name, online)
    for path, content in files.items():
        if path.endswith("/shared_cpu_list"):
            yield parse_cpu_list(content) & online
        elif path.endswith("/shared_cpu_map"):
            yield parse_cpu_mask(content) & online


def _nodes(files: Mapping[str, str], online: Cpus) -> dict[int, Cpus]:
    """Return the CPUs of each NUMA node that has any."""
    numbers = {_index(path) for path in files if path.startswith("node/node")}
    paths = {number: f"node/node{number}" for number in sorted(numbers)}
    nodes = {number: _read_set(files, f"{path}/cpulist", f"{path}/cpumap") for number, path in paths.items()}
    return {number: cpus & online for number, cpus in nodes.items() if cpus and cpus & online}


def _near_nodes(files: Mapping[str, str], nodes: Mapping[int, Cpus]) -> Iterator[Cpus]:
    """Yield the CPUs of the groups of NUMA nodes that hwloc makes from their distances."""
    rows = {_index(path): content.split() for path, content in files.items() if path.endswith("/distance")}
    numbers = sorted(rows)
    distances = [[int(distance) for distance in rows[number]] for number in numbers]
    if all(len(row) == len(numbers) for row in distances):
        for group in near_groups(distances):
            yield frozenset().union(*(nodes.get(numbers[place], frozenset()) for place in group))


def _allowed(output: ProbeOutput) -> Allowed:
    """Return the CPUs and nodes that the cpuset shows, and the process's own affinity."""
    lists = dict[str, Cpus]()
    for words in output.records:
        if words[0] == "@cpuset":
            kind, _, text = words[2].partition(" ")
            lists[kind] = parse_cpu_list(text)
    affinity = (text for path, text in output.files.items() if path.endswith(":Cpus_allowed_list"))
    own = next(affinity, None)
    return Allowed(lists.get("cpus"), lists.get("mems"), None if own is None else parse_cpu_list(own))
