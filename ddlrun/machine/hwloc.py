"""Parser of hwloc's XML (`lstopo --of xml`) in its formats 1 and 2."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.etree import ElementTree as ET

from ddlrun.errors import HostError
from ddlrun.machine import PU, Core, Machine, MachineNoteCode, machine_note
from ddlrun.machine.cpus import parse_cpuset
from ddlrun.machine.depths import at_several_depths
from ddlrun.machine.hwloc_locality import read_locality
from ddlrun.machine.locality import distance_rows, with_locality
from ddlrun.machine.pci import PciDevice, attach, gpu_vendor, installed_memory
from ddlrun.ranges import render_ranges

_PACKAGE = ("Package", "Socket")  # hwloc 1.10 and before says Socket
_INSTRUCTIONS = "2"  # caches of this type are not among the objects that mpirun reads
_NETWORK, _RDMA = "2", "3"
# hwloc 2.10 and later also write the types as words, and several types in one attribute.
_OS_DEVICES = {_NETWORK: "net", "Network": "net", _RDMA: "infiniband", "OpenFabrics": "infiniband"}


class _Surroundings(NamedTuple):
    """The package, core and buses that contain an object, and the CPUs of the innermost object with CPUs."""

    package: int | None = None
    core: int | None = None
    cpus: frozenset[int] = frozenset()
    path: tuple[str, ...] = ()


class _Allowed(NamedTuple):
    """The CPUs and the NUMA nodes that may be used. The nodes have all their CPUs, others included."""

    cpus: frozenset[int]
    nodes: Mapping[int, frozenset[int]]


class _Objects:
    """The objects that a walk through the XML collects."""

    def __init__(self) -> None:
        self.packages = 0
        self.packages_uncertain = False
        self.has_hidden_package = False
        self.sets: list[tuple[str, frozenset[int]]] = []
        self.cores = 0
        self.pus: list[tuple[int | None, int | None, int]] = []
        self.gpus: list[PciDevice] = []
        self.nics: list[PciDevice] = []


def parse_hwloc(text: str, host: str, allowed: frozenset[int] | None = None) -> Machine:
    """Parse the output of `lstopo --of xml` on `host`; logical indexes are hwloc's own.

    PUs that hwloc calls disallowed are left out; cores without a PU in `allowed` (OS indexes, None: all)
    are not usable. A machine without cores counts its PUs as cores; one without packages is not `packaged`.

    Raises:
        HostError: the text is broken (with its line), or objects contradict each other.
    """
    if "<!ENTITY" in text:  # lstopo declares none; only new versions of expat limit their expansion
        raise HostError(host, "lstopo: its XML declares entities; run lstopo --of xml again")
    try:
        root = ET.fromstring(text)  # noqa: S314 - there are no entities
    except ET.ParseError as error:
        problem = str(error).partition(":")[0]
        raise HostError(host, f"lstopo, line {error.position[0]}: {problem}; run lstopo --of xml again") from error
    try:
        return _machine(root, allowed)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise HostError(host, f"lstopo: {error}; run lstopo --of xml again") from error


def _machine(root: ET.Element, allowed: frozenset[int] | None) -> Machine:
    top = root.find("object")
    if root.tag != "topology" or top is None or top.get("type") not in ("Machine", "System"):
        raise ValueError("this XML is not the topology of a machine")
    available = parse_cpuset(top.attrib["cpuset"])
    if "allowed_cpuset" in top.attrib:
        available &= parse_cpuset(top.attrib["allowed_cpuset"])
    if "online_cpuset" in top.attrib:
        available &= parse_cpuset(top.attrib["online_cpuset"])
    nodes = _nodes(top, available)
    objects = _Objects()
    _walk(top, _Surroundings(cpus=_all_cpus(top)), objects, _Allowed(available, nodes))
    _check(objects, available)
    several = at_several_depths([item for item in objects.sets if item[1] & available])
    if "Core" in several:
        objects.pus, objects.cores = [(package, None, number) for package, _, number in objects.pus], 0
    locality = read_locality(root)
    cores = with_locality(_cores(objects, nodes, allowed), locality)
    if not any(core.usable for core in cores):
        raise ValueError("no core is usable")
    gpus, nics = ([_on_node(device, nodes) for device in devices] for devices in (objects.gpus, objects.nics))
    attached, cards = attach(cores, gpus, nics)
    codes = {
        MachineNoteCode.CORES_ARE_THREADS: not objects.cores,
        MachineNoteCode.PACKAGES_UNCERTAIN: objects.packages_uncertain,
    }
    return Machine(
        cores=cores,
        gpus=attached,
        nics=cards,
        source="hwloc",
        measured=True,
        numa_nodes=tuple(sorted(nodes)),
        numa_distances=distance_rows(sorted(nodes), locality.distances),
        packaged=objects.packages > 0 and "Package" not in several,
        memory=installed_memory(sum(int(node.get("local_memory", "0")) for node in _numa_nodes(top)) >> 10),
        notes=tuple(machine_note(code) for code, applies in codes.items() if applies),
        empty_packages=tuple(sorted(set(range(objects.packages)) - {core.package for core in cores})),
    )


def _all_cpus(item: ET.Element) -> frozenset[int]:
    """Return an object's CPUs, including those that may not be used."""
    return parse_cpuset(item.get("complete_cpuset") or item.attrib["cpuset"])


def _numa_nodes(item: ET.Element) -> Iterator[ET.Element]:
    return item.iterfind(".//object[@type='NUMANode']")


def _on_node(device: PciDevice, nodes: Mapping[int, frozenset[int]]) -> PciDevice:
    """Return a device on the smallest NUMA node that contains the CPUs near it."""
    around = [(len(cpus), node) for node, cpus in nodes.items() if device.cpus and device.cpus <= cpus]
    return device._replace(numa_node=min(around)[1]) if around else device


def _is_visible(package: ET.Element, allowed: _Allowed) -> bool:
    """Check if hwloc counts a package: a CPU of it, or the memory of a node inside it, may be used."""
    if parse_cpuset(package.attrib["cpuset"]) & allowed.cpus:
        return True
    cpus, inside = _all_cpus(package), {int(node.attrib["os_index"]) for node in _numa_nodes(package)}
    return any(node in inside or (node_cpus and node_cpus <= cpus) for node, node_cpus in allowed.nodes.items())


def _walk(item: ET.Element, inside: _Surroundings, objects: _Objects, allowed: _Allowed) -> None:
    kind = item.get("type")
    if kind in _PACKAGE and _is_visible(item, allowed):
        inside = inside._replace(package=objects.packages)
        objects.packages += 1
        objects.packages_uncertain = objects.has_hidden_package
    elif kind in _PACKAGE:
        objects.has_hidden_package = True
    elif kind == "Core" and parse_cpuset(item.attrib["cpuset"]) & allowed.cpus:
        inside = inside._replace(core=objects.cores)
        objects.cores += 1
    elif kind == "PU" and (number := int(item.attrib["os_index"])) in allowed.cpus:
        objects.pus.append((inside.package, inside.core, number))
    elif kind in ("Bridge", "PCIDev"):
        inside = _on_bus(item, inside, objects)
    elif kind == "OSDev":
        _os_device(item, inside, objects)
    if "cpuset" in item.attrib:
        inside = inside._replace(cpus=_all_cpus(item))
        if item.get("cache_type") != _INSTRUCTIONS:
            objects.sets.append((_type(item), inside.cpus))
    for child in item.iterfind("object"):
        _walk(child, inside, objects, allowed)


def _type(item: ET.Element) -> str:
    """Return an object's type, with the level of a cache and the kind of a group."""
    kind = item.get("type", "")
    if kind == "Cache":
        return f"L{item.get('depth')}"
    return f"Group {item.get('kind')} {item.get('subkind')}" if kind == "Group" else kind.removesuffix("Cache")


def _on_bus(item: ET.Element, inside: _Surroundings, objects: _Objects) -> _Surroundings:
    where = item.get("pci_busid") or item.get("bridge_pci") or ""
    inside = inside._replace(path=(*inside.path, where))
    words = item.get("pci_type", "").replace("[", " ").replace("]", " ").replace(":", " ").split()
    vendor = gpu_vendor(words[1], words[2], words[0]) if item.get("type") == "PCIDev" and len(words) > 2 else None
    if vendor:
        objects.gpus.append(PciDevice(vendor, where, path=inside.path, cpus=inside.cpus))
    return inside


def _os_device(item: ET.Element, inside: _Surroundings, objects: _Objects) -> None:
    name = item.get("name", "")
    kind = _OS_DEVICES.get(item.get("osdev_type", ""))
    if kind and inside.path and name:
        objects.nics.append(PciDevice(kind, name, path=inside.path, cpus=inside.cpus))


def _check(objects: _Objects, available: frozenset[int]) -> None:
    """Raise ValueError where the PUs are not those of the machine's cpuset, or only some are in packages and cores."""
    numbers = [number for _, _, number in objects.pus]
    if len(set(numbers)) < len(numbers):
        raise ValueError("a PU is listed twice")
    if set(numbers) != available:
        different = render_ranges(available ^ set(numbers))
        raise ValueError(f"PUs {different} are only in the machine's cpuset or only among its objects")
    for kind, count, field in (("package", objects.packages, 0), ("core", objects.cores, 1)):
        outside = [pu[2] for pu in objects.pus if pu[field] is None]
        if count and outside:
            raise ValueError(f"PUs {render_ranges(outside)} are in no {kind}, others are")


def _nodes(top: ET.Element, available: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return all CPUs of each NUMA node that may be used; a machine without nodes has one with all CPUs."""
    nodes = {int(node.attrib["os_index"]): _all_cpus(node) for node in _numa_nodes(top)}
    if "allowed_nodeset" in top.attrib and top.get("allowed_nodeset") != "0xf...f":
        usable = parse_cpuset(top.attrib["allowed_nodeset"])
        nodes = {number: cpus for number, cpus in nodes.items() if number in usable}
    return nodes or {0: available}


def _cores(objects: _Objects, nodes: Mapping[int, frozenset[int]], allowed: frozenset[int] | None) -> Iterator[Core]:
    node_of = {pu: node for node, cpus in sorted(nodes.items(), reverse=True) for pu in cpus}
    groups: dict[tuple[int, int], list[int]] = {}
    for position, (package, core, number) in enumerate(objects.pus):
        groups.setdefault((package or 0, position if core is None else core), []).append(number)
    sizes: Counter[int] = Counter()  # how many cores of each package have been numbered
    for logical_index, ((package, _), pus) in enumerate(groups.items()):
        yield Core(
            logical_index=logical_index,
            package=package,
            index_in_package=sizes[package],
            numa_node=node_of.get(pus[0]),
            pus=tuple(map(PU, sorted(pus))),
            usable=allowed is None or not allowed.isdisjoint(pus),
        )
        sizes[package] += 1
