"""hwloc's XML of a machine, in the formats of hwloc 2 and hwloc 1."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree as ET

from ddlrun.machine.numa_groups import near_groups
from tests.machines.cpu_groups import Cpus
from tests.machines.facts import Device, Facts

# Types from the outermost inwards, for objects with the same CPUs.
_MEMORY_1 = "NUMANode"  # an ordinary object in hwloc 1
_DEVICE_IDS = {"nvidia": "0302 [10de:1db1]", "amd": "0380 [1002:738c]", "intel": "0380 [8086:0bd5]"}
_ETHERNET, _INFINIBAND = "0200 [8086:1521]", "0207 [15b3:1017]"


class _Object(NamedTuple):
    """An object with CPUs, and its place among objects with the same CPUs."""

    cpus: Cpus
    place: int
    kind: str
    os_index: int | None = None
    level: int = 0


def render_hwloc(facts: Facts, version: int = 2) -> str:
    """Return what `lstopo --disallowed --of xml` would print; version 1 is the format of hwloc 1.

    Offline CPUs are only in the complete cpusets.
    """
    root = ET.Element("topology", {"version": "2.0"} if version == 2 else {})
    objects = sorted(_objects(facts, version), key=lambda item: (-len(item.cpus), item.place, min(item.cpus)))
    top = _element(root, facts, _Object(facts.cpus, 0, "Machine", 0), version)
    top.set("allowed_cpuset", cpuset(facts.allowed))
    if version == 1:
        top.set("online_cpuset", cpuset(facts.online))
    top.set("allowed_nodeset", cpuset(set(facts.nodes or [0]) - facts.forbidden_nodes))
    _nest(top, facts, objects, version)
    _attach_devices(top, facts, version)
    if facts.distances:
        _add_distances(root if version == 2 else top, facts, version)
    _add_kinds(root, facts)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def cpuset(cpus: Iterable[int]) -> str:
    """Return a set in hwloc's notation.

    >>> cpuset([0, 33])
    '0x00000002,0x00000001'
    """
    bits = sum(1 << cpu for cpu in cpus)
    words = [f"0x{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(reversed(words))


def _objects(facts: Facts, version: int) -> Iterator[_Object]:
    """Yield the objects with CPUs that are not all offline, except the machine."""
    for index, cpus in facts.packages.items():
        yield _Object(cpus, 2, "Package", index)
    for cpus in _node_groups(facts) if version == 2 else ():
        yield _Object(cpus, 1, "Group")
    if version == 1:
        yield from (_Object(cpus, 1, _MEMORY_1, index) for index, cpus in facts.nodes.items() if cpus)
    yield from (_Object(cpus, 3, "Group") for cpus in facts.groups)
    for level, caches in facts.caches.items():
        yield from (_Object(cpus, 4 + 10 - level, "Cache", level=level) for cpus in caches if cpus & facts.online)
    for index, cpus in enumerate(facts.cores):
        if cpus & facts.online:
            yield _Object(cpus, 20, "Core", index)
    yield from (_Object(frozenset({cpu}), 30, "PU", cpu) for cpu in facts.online)


def _node_groups(facts: Facts) -> set[Cpus]:
    """Return the CPUs of NUMA nodes that need an object of their own, and those of groups of near nodes."""
    others = {facts.cpus, *facts.packages.values(), *facts.groups}
    nodes = [facts.nodes[node] for node in sorted(facts.nodes)]
    near = {
        frozenset().union(*(nodes[place] for place in group))
        for level in near_groups(facts.distances)
        for group in level
    }
    return {cpus for cpus in {*nodes, *near} if cpus and cpus not in others}


def _element(parent: ET.Element, facts: Facts, item: _Object, version: int) -> ET.Element:
    attributes = {"type": item.kind}
    if item.kind == "Cache":
        attributes = {"type": "Cache" if version == 1 else f"L{item.level}Cache", "depth": str(item.level)}
        attributes |= {"cache_type": "0", "cache_size": str(1 << (13 + 2 * item.level))}
        attributes |= {"cache_linesize": "64", "cache_associativity": "0"}
    if item.kind == _MEMORY_1:
        attributes["local_memory"] = str(facts.memory.get(item.os_index or 0, 0) << 20)
    if item.os_index is not None:
        attributes["os_index"] = str(item.os_index)
    attributes |= {"cpuset": cpuset(item.cpus & facts.online), "complete_cpuset": cpuset(item.cpus)}
    if item.kind == "Machine" and version == 1:
        attributes |= {"nodeset": cpuset(facts.nodes or [0])}
    element = ET.SubElement(parent, "object", attributes)
    if version == 2:
        nodes = _nodes_of(facts, item.cpus)
        element.set("nodeset", cpuset(nodes))
        element.set("complete_nodeset", cpuset(nodes))
    return element


def _nodes_of(facts: Facts, cpus: Cpus) -> list[int]:
    if cpus == facts.cpus:
        return list(facts.nodes or [0])
    return [node for node, inside in facts.nodes.items() if inside & cpus] or [0]


def _nest(top: ET.Element, facts: Facts, objects: list[_Object], version: int) -> None:
    """Put each object into the smallest one around it, and NUMA nodes beside the objects with their CPUs."""
    innermost: dict[int, tuple[ET.Element, Cpus]] = dict.fromkeys(facts.cpus, (top, facts.cpus))
    hosts: dict[Cpus, ET.Element] = {facts.cpus: top}
    for item in _ordered(objects):
        parent, around = innermost[min(item.cpus)]
        if not item.cpus <= around:
            raise ValueError(f"{facts.name}: {item.kind} {sorted(item.cpus)} crosses another object")
        element = _element(parent, facts, item, version)
        hosts.setdefault(item.cpus, element)
        innermost |= dict.fromkeys(item.cpus, (element, item.cpus))
    for index, cpus in (facts.nodes or {0: facts.cpus}).items():
        if version == 2 or not cpus:
            _node(hosts[cpus] if cpus else top, facts, index, cpus)
    _sort(top)


def _ordered(objects: list[_Object]) -> Iterator[_Object]:
    """Yield objects from the largest to the smallest, without groups that repeat another object's CPUs."""
    seen: set[Cpus] = set()
    for item in objects:
        if item.kind != "Group" or item.cpus not in seen:
            yield item
        seen.add(item.cpus)


def _node(parent: ET.Element, facts: Facts, index: int, cpus: Cpus) -> None:
    attributes = {"type": "NUMANode", "os_index": str(index), "cpuset": cpuset(cpus & facts.online)}
    attributes |= {"complete_cpuset": cpuset(cpus), "nodeset": cpuset([index]), "complete_nodeset": cpuset([index])}
    element = ET.Element("object", {**attributes, "local_memory": str(facts.memory.get(index, 0) << 20)})
    parent.insert(0, element)


def _sort(element: ET.Element) -> None:
    """Sort objects by their first CPU, offline ones included, as hwloc does; memory comes first."""
    element[:] = sorted(element, key=lambda child: (child.get("type") != "NUMANode", _first(child)))
    for child in element:
        _sort(child)


def _first(element: ET.Element) -> int:
    if element.get("type") == "NUMANode":
        return int(element.get("os_index", "0"))
    bits = int("".join(word[2:] for word in element.get("complete_cpuset", "0x0").split(",")), 16)
    return (bits & -bits).bit_length()


def _add_distances(parent: ET.Element, facts: Facts, version: int) -> None:
    cells = [cell for row in facts.distances for cell in row]
    if version == 1:
        attributes = {"nbobjs": str(len(facts.nodes)), "relative_depth": "1", "latency_base": "10.000000"}
        matrix = ET.Element("distances", attributes)
        parent.insert(0, matrix)
        for cell in cells:
            ET.SubElement(matrix, "latency", {"value": f"{cell / 10:.6f}"})
        return
    attributes = {"type": "NUMANode", "nbobjs": str(len(facts.nodes)), "kind": "5", "name": "NUMALatency"}
    matrix = ET.SubElement(parent, "distances2", {**attributes, "indexing": "os"})
    for tag, numbers in (("indexes", list(facts.nodes)), ("u64values", cells)):
        text = "".join(f"{number} " for number in numbers)
        ET.SubElement(matrix, tag, {"length": str(len(text))}).text = text


def _add_kinds(root: ET.Element, facts: Facts) -> None:
    for kind, cpus in facts.kinds.items():
        element = ET.SubElement(root, "cpukind", {"cpuset": cpuset(cpus & facts.online)})
        info = ("LinuxCapacity", kind) if kind.isdecimal() else ("CoreType", f"Intel{kind.title()}")
        ET.SubElement(element, "info", {"name": info[0], "value": info[1]})


def _attach_devices(top: ET.Element, facts: Facts, version: int) -> None:
    bridges: dict[tuple[str, ...], ET.Element] = {}
    for device in facts.devices:
        near = device.near & facts.online
        parent = _locality(top, near, version) if near else top
        for depth in range(1, len(device.path)):
            above = device.path[:depth]
            if above not in bridges:
                bridges[above] = _bridge(parent, above)
            parent = bridges[above]
        _pci_device(parent, device)


def _locality(top: ET.Element, near: Cpus, version: int) -> ET.Element:
    """Return the innermost object, except cores and PUs, that has exactly these CPUs."""
    excluded = {"Core", "PU", *(["NUMANode"] if version == 2 else [])}
    wanted = cpuset(near)
    matches = [item for item in top.iter("object") if item.get("cpuset") == wanted and item.get("type") not in excluded]
    return matches[-1] if matches else top


def _bridge(parent: ET.Element, path: tuple[str, ...]) -> ET.Element:
    domain, bus = path[-1].removeprefix("pci").split(":")[:2]
    buses = f"{domain}:[{bus}-{bus}]"
    if len(path) == 1:
        kind = {"bridge_type": "0-1", "depth": "0", "bridge_pci": buses}
        return ET.SubElement(parent, "object", {"type": "Bridge", **kind})
    kind = {"bridge_type": "1-1", "depth": str(len(path) - 1), "pci_busid": path[-1]}
    ids = {"pci_type": "0604 [10b5:8725] [10b5:8725] ca", "pci_link_speed": "0.000000"}
    return ET.SubElement(parent, "object", {"type": "Bridge", **kind, "bridge_pci": buses, **ids})


def _pci_device(parent: ET.Element, device: Device) -> None:
    ids = _DEVICE_IDS[device.gpu] if device.gpu else _INFINIBAND if device.rdma else _ETHERNET
    attributes = {"pci_busid": device.address, "pci_type": f"{ids} [0000:0000] 00", "pci_link_speed": "0.000000"}
    element = ET.SubElement(parent, "object", {"type": "PCIDev", **attributes})
    for name in device.nets:
        ET.SubElement(element, "object", {"type": "OSDev", "name": name, "osdev_type": "2"})
    if device.rdma:
        ET.SubElement(element, "object", {"type": "OSDev", "name": device.rdma, "osdev_type": "3"})
