"""Cores and NUMA nodes in the output of the /sys probe, numbered as hwloc numbers them there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ddlrun.machine import Core, MachineNote, MachineNoteCode, machine_note
from ddlrun.machine.cpus import parse_cpu_mask
from ddlrun.machine.depths import count_threads, types_at_several_depths
from ddlrun.machine.hwloc_2_0 import number_alike, number_hwloc_2_0_cores
from ddlrun.machine.numa_groups import near_groups
from ddlrun.machine.numbering import (
    Allowed,
    Cpus,
    CpuSets,
    Numbering,
    TypedSet,
    counts_hidden_core,
    number_cores,
    with_near,
)
from ddlrun.machine.sysfs_script import ProbeOutput
from ddlrun.ranges import parse_ranges

# Files of objects that hwloc 2.0 does not read, and of their types.
_NEWER_GROUPS = {"cluster_cpus": "Cluster", "die_cpus": "Die", "drawer_siblings": "Drawer"}


class SysfsCores(NamedTuple):
    """The numbered cores, the NUMA nodes, whether there are packages, and notes.

    `hwloc_2_0_cores` are the cores as hwloc 2.0 numbers them, empty where it does not differ.
    """

    numbering: Numbering
    hwloc_2_0_cores: tuple[Core, ...]
    numa_nodes: tuple[int, ...]
    packaged: bool
    notes: tuple[MachineNote, ...]


def read_cores(output: ProbeOutput) -> SysfsCores:
    """Return a host's cores. Raises ValueError on unexpected contents."""
    files = output.files
    described = described_cpus(files)
    online = described & parse_ranges(files["cpu/online"]) if "cpu/online" in files else described
    packages = _topology(files, "core_siblings", online)
    threads = _topology(files, "thread_siblings", online)
    nodes = _nodes(files, online)
    cores = _cores(threads, files, online)
    newer = [(kind, cpus) for name, kind in _NEWER_GROUPS.items() for cpus in _topology(files, name, online) - cores]
    known = [*(("Book", cpus) for cpus in _topology(files, "book_siblings", online)), *_caches(files, online)]
    apart = _apart(nodes)
    ignored = frozenset(nodes) - apart.keys()
    near = _near_nodes(files, ignored)
    without_near = CpuSets(
        cores=cores,
        packages=packages or {online},
        nodes=apart,
        groups=[*newer, *known],
        memory_nodes=_memory_nodes(files, nodes, ignored),
    )
    sets = with_near(without_near, near)
    allowed = _allowed(output)
    several = types_at_several_depths(sets, allowed)
    numbering = number_cores(count_threads(sets) if "Core" in several else sets, allowed)
    old_sets = _old_sets(without_near._replace(nodes=nodes, groups=known), near)
    cgroup_2 = any(words[:2] == ["@cpuset", "cgroup2"] for words in output.records)
    other_cores = number_hwloc_2_0_cores(
        old_sets,
        allowed,
        cgroup_2=cgroup_2,
        has_core_ids=["@cpuinfo", "cores"] in output.records,
    )
    packaged = bool(packages) and "Package" not in several
    uncounted = not _with_topology(files) or any(
        counts_hidden_core(read, allowed) for read in ([sets] if cgroup_2 else [sets, old_sets])
    )
    if uncounted or number_alike(numbering.cores, other_cores, packaged=packaged):
        other_cores = ()
    codes = {
        MachineNoteCode.CORES_UNCOUNTED: uncounted,
        MachineNoteCode.CORES_ARE_THREADS: not uncounted and (not threads or "Core" in several),
        MachineNoteCode.CORES_OF_OPEN_MPI_4: bool(other_cores),
        MachineNoteCode.PACKAGES_UNCERTAIN: numbering.uncertain,
    }
    return SysfsCores(
        numbering=numbering,
        hwloc_2_0_cores=other_cores,
        numa_nodes=_numa_nodes(files, nodes, allowed),
        packaged=packaged,
        notes=tuple(machine_note(code) for code, applies in codes.items() if applies),
    )


def described_cpus(files: Mapping[str, str]) -> Cpus:
    """Return the CPUs that have a topology; those that the process may run on, if none has one."""
    return _with_topology(files) or _affinity(files) or frozenset()


def _with_topology(files: Mapping[str, str]) -> Cpus:
    return frozenset(_index(path) for path in files if path.startswith("cpu/cpu") and "/topology/" in path)


def _numa_nodes(files: Mapping[str, str], nodes: Iterable[int], allowed: Allowed) -> tuple[int, ...]:
    """Return the online NUMA nodes that may be used."""
    online = parse_ranges(files["node/online"]) if "node/online" in files else frozenset(nodes)
    return tuple(sorted(online if allowed.nodes is None else online & allowed.nodes))


def _old_sets(sets: CpuSets, near: Iterable[Iterable[frozenset[int]]]) -> CpuSets:
    """Return the objects that hwloc 2.0 reads: of NUMA nodes that overlap the first, and then no distances."""
    nodes = _apart(sets.nodes)
    old = sets._replace(nodes=nodes, memory_nodes={})
    return with_near(old, near) if len(nodes) == len(sets.nodes) else old


def _index(path: str) -> int:
    """Return the number of a CPU or a node: that of its folder."""
    return int(path.split("/")[1].lstrip("cpunode"))


def _read_set(files: Mapping[str, str], list_path: str, mask_path: str) -> Cpus | None:
    if list_path in files:
        return parse_ranges(files[list_path])
    return parse_cpu_mask(files[mask_path]) if mask_path in files else None


def _topology(files: Mapping[str, str], name: str, online: Cpus) -> set[Cpus]:
    """Return the different sets of a file of each CPU; like hwloc, those alone that their first CPU has."""
    paths = {cpu: f"cpu/cpu{cpu}/topology/{name}" for cpu in online}
    read = {cpu: _read_set(files, f"{path}_list", path) for cpu, path in paths.items()}
    sets = {cpu: cpus & online for cpu, cpus in read.items() if cpus}
    return {cpus for cpu, cpus in sets.items() if cpus and min(cpus) == cpu}


def _cores(threads: set[Cpus], files: Mapping[str, str], online: Cpus) -> set[Cpus]:
    """Return the CPUs of each core; those without siblings are cores, and so are the siblings in AMD's modules."""
    first_module = min((cpus for cpus in threads if len(cpus) > 1), key=min, default=frozenset[int]())
    numbers = {files.get(f"cpu/cpu{cpu}/topology/core_id") for cpu in sorted(first_module)[:2]}
    listed = set() if len(numbers) > 1 else threads
    alone = online.difference(*listed)
    return listed | {frozenset({cpu}) for cpu in alone}


def _caches(files: Mapping[str, str], online: Cpus) -> Iterator[TypedSet]:
    for path, content in files.items():
        cache, _, name = path.rpartition("/")
        if name in ("shared_cpu_list", "shared_cpu_map"):
            cpus = parse_ranges(content) if name == "shared_cpu_list" else parse_cpu_mask(content)
            yield f"L{files.get(f'{cache}/level', '')}", cpus & online


def _nodes(files: Mapping[str, str], online: Cpus) -> dict[int, Cpus]:
    """Return the CPUs of each NUMA node that has any."""
    numbers = {_index(path) for path in files if path.startswith("node/node")}
    paths = {number: f"node/node{number}" for number in sorted(numbers)}
    nodes = {number: _read_set(files, f"{path}/cpulist", f"{path}/cpumap") for number, path in paths.items()}
    return {number: cpus & online for number, cpus in nodes.items() if cpus and cpus & online}


def _apart(nodes: Mapping[int, Cpus]) -> dict[int, Cpus]:
    """Return the NUMA nodes without those that overlap an earlier one: hwloc ignores them."""
    apart: dict[int, Cpus] = {}
    for node, cpus in nodes.items():
        if cpus.isdisjoint(frozenset().union(*apart.values())):
            apart[node] = cpus
    return apart


def _distances(files: Mapping[str, str]) -> dict[int, list[int]]:
    """Return the distances of each node to all of them, in their order; none if a row is incomplete."""
    rows = {_index(path): content.split() for path, content in files.items() if path.endswith("/distance")}
    if any(len(row) != len(rows) for row in rows.values()):
        return {}
    return {node: [int(distance) for distance in rows[node]] for node in sorted(rows)}


def _near_nodes(files: Mapping[str, str], ignored: frozenset[int]) -> list[list[frozenset[int]]]:
    """Return the levels of groups of NUMA nodes that hwloc makes from their distances."""
    distances = _distances(files)
    places = [place for place, number in enumerate(distances) if number not in ignored]
    numbers = [number for number in distances if number not in ignored]
    rows = [[distances[number][place] for place in places] for number in numbers]
    return [
        [frozenset(numbers[place] for place in group) for group in level]
        for level in (near_groups(rows) if rows else ())
    ]


def _memory_nodes(files: Mapping[str, str], nodes: Mapping[int, Cpus], ignored: frozenset[int]) -> dict[int, Cpus]:
    """Return the CPUs of the nodes nearest to each node that has none, unless all are equally near."""
    distances = _distances(files)
    cpus_of = dict(nodes)
    for node, row in distances.items():
        others = {
            other: distance for other, distance in zip(distances, row, strict=True) if other not in {node, *ignored}
        }
        least = min(others.values(), default=0)
        nearest = [other for other, distance in others.items() if distance == least]
        if node not in nodes and 0 < len(nearest) < len(distances) - 1:
            cpus_of[node] = frozenset().union(*(cpus_of.get(other, frozenset()) for other in nearest))
    return {node: cpus for node, cpus in cpus_of.items() if node not in nodes}


def _allowed(output: ProbeOutput) -> Allowed:
    """Return the CPUs and nodes that the cpuset shows, and the process's own affinity."""
    lists = dict[str, Cpus]()
    for words in output.records:
        if words[0] == "@cpuset":
            kind, _, text = words[2].partition(" ")
            lists[kind] = parse_ranges(text)
    return Allowed(lists.get("cpus"), lists.get("mems"), _affinity(output.files))


def _affinity(files: Mapping[str, str]) -> Cpus | None:
    own = next((text for path, text in files.items() if path.endswith(":Cpus_allowed_list")), None)
    return None if own is None else parse_ranges(own)
