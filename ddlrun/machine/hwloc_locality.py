"""L3 domains, kinds of cores and NUMA distances in hwloc's XML, in its formats 1 and 2."""

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from ddlrun.machine.cpus import parse_cpuset
from ddlrun.machine.locality import Locality

# hwloc's names of Intel's kinds of cores; other systems have numbers.
_CORE_TYPES = {"IntelLowPower": 0, "IntelAtom": 1, "IntelCore": 2}

Distances = dict[int, dict[int, int]]


def read_locality(root: ET.Element) -> Locality:
    """Return the locality of a topology. Raises ValueError or KeyError for values that are not numbers."""
    return Locality(
        l3_domains=[parse_cpuset(item.attrib["cpuset"]) for item in root.iter("object") if _is_l3(item)],
        speeds={cpu: speed for kind in root.iterfind("cpukind") for cpu, speed in _speeds(kind)},
        distances=_distances(root) or _distances_1(root),
    )


def _is_l3(item: ET.Element) -> bool:
    """Check if an object is an L3 cache; hwloc 1 gives its level as depth."""
    if item.get("type") == "Cache":
        return item.get("depth") == "3" and item.get("cache_type", "0") == "0"
    return item.get("type") == "L3Cache"


def _speeds(kind: ET.Element) -> Iterator[tuple[int, int]]:
    """Yield the CPUs of a kind of cores with its speed; Intel's kinds may have equal capacities.

    Frequencies do not count: those of equal cores differ too, where some of them may clock higher.
    """
    infos = {info.get("name"): info.get("value", "") for info in kind.iterfind("info")}
    core_type, capacity = infos.get("CoreType", ""), infos.get("LinuxCapacity", "")
    if core_type in _CORE_TYPES or capacity:
        speed = _CORE_TYPES[core_type] if core_type in _CORE_TYPES else int(capacity)
        yield from ((cpu, speed) for cpu in parse_cpuset(kind.attrib["cpuset"]))


def _distances(root: ET.Element) -> Distances:
    for matrix in root.iterfind("distances2"):
        if matrix.get("type") == "NUMANode" and matrix.get("name", "NUMALatency") == "NUMALatency":
            nodes = _numbers(matrix, "indexes")
            return _square(nodes, _numbers(matrix, "u64values")) if matrix.get("indexing") == "os" else {}
    return {}


def _numbers(matrix: ET.Element, tag: str) -> list[int]:
    return [int(word) for part in matrix.iterfind(tag) for word in (part.text or "").split()]


def _distances_1(root: ET.Element) -> Distances:
    """Return hwloc 1's distances: multiples of a base, in the order of the NUMA nodes with CPUs or memory."""
    nodes = [int(item.attrib["os_index"]) for item in root.iter("object") if item.get("type") == "NUMANode"]
    for matrix in root.iter("distances"):
        if matrix.get("nbobjs") == str(len(nodes)) and nodes:
            base = float(matrix.get("latency_base", "1"))
            cells = [round(float(cell.attrib["value"]) * base) for cell in matrix.iterfind("latency")]
            return _square(nodes, cells)
    return {}


def _square(nodes: Sequence[int], cells: Sequence[int]) -> Distances:
    if len(cells) != len(nodes) ** 2:
        return {}
    rows = (cells[start : start + len(nodes)] for start in range(0, len(cells), len(nodes)))
    return {node: dict(zip(nodes, row, strict=True)) for node, row in zip(nodes, rows, strict=True)}
