"""What hwloc's `lstopo --of xml` prints -> Machine. Both of hwloc's formats, 1 and 2."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree as ET

from ddlrun.errors import UnreachableError
from ddlrun.machine import PU, THREADS_ALONE, Core, Machine
from ddlrun.machine.cpus import MOST_PUS, cpu_list
from ddlrun.machine.pci import PciDevice, attach, gpu_vendor, installed_memory

_PACKAGE = ("Package", "Socket")  # hwloc 1.10 and before says Socket
_NETWORK, _RDMA = "2", "3"
# hwloc 2.10 and later also write the types as words, several in one.
_OS_DEVICES = {_NETWORK: "net", "Network": "net", _RDMA: "infiniband", "OpenFabrics": "infiniband"}


class _Inside(NamedTuple):
    """What is around an object: its package, core and bus, and the CPUs of the nearest object that has some."""

    package: int | None = None
    core: int | None = None
    cpus: frozenset[int] = frozenset()
    path: tuple[str, ...] = ()


class _Found:
    """What one walk through the XML gathers."""

    def __init__(self) -> None:
        self.packages = 0
        self.cores = 0
        self.pus: list[tuple[int | None, int | None, int]] = []
        self.nodes: dict[int, tuple[frozenset[int], int]] = {}
        self.gpus: list[tuple[PciDevice, frozenset[int], int | None]] = []
        self.nics: list[tuple[PciDevice, frozenset[int], int | None]] = []


def parse_hwloc(text: str, host: str, allowed: frozenset[int] | None = None) -> Machine:
    """Parse what `lstopo --of xml` printed on `host`; logical indexes are hwloc's own.

    PUs that hwloc calls disallowed are not there; cores without a PU in `allowed` (OS indexes, None: all)
    are not usable. A machine without cores counts its PUs as cores; one without packages is not
    `packaged`. Raises UnreachableError with the line on broken text, or where objects contradict each other.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314 - expat itself stops what would grow without end
    except ET.ParseError as error:
        raise UnreachableError(
            f"host {host}: lstopo, line {error.position[0]}: {str(error).partition(':')[0]}; run lstopo --of xml again"
        ) from error
    try:
        return _machine(root, allowed)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UnreachableError(f"host {host}: lstopo: {error}; run lstopo --of xml again") from error


def parse_cpuset(text: str) -> frozenset[int]:
    """Parse hwloc's bitmap format. Raises ValueError on anything else.

    >>> sorted(parse_cpuset("0x1,0x00000005"))
    [0, 2, 32]
    """
    words = text.split(",")
    if words[0] == "0xf...f":  # all CPUs from there on: the mask of a device that sees everything
        words = ["0xffffffff"] * (MOST_PUS // 32 - len(words) + 1) + words[1:]
    if len(words) * 32 > MOST_PUS:
        raise ValueError(f"a bitmap of {len(words)} words")
    bits = int("".join(f"{int(word or '0', 16):08x}" for word in words), 16)
    return frozenset(place for place, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")


def _machine(root: ET.Element, allowed: frozenset[int] | None) -> Machine:
    top = root.find("object")
    if root.tag != "topology" or top is None or top.get("type") not in ("Machine", "System"):
        raise ValueError("this XML is no topology of a machine")
    there = parse_cpuset(top.attrib["cpuset"])
    if "allowed_cpuset" in top.attrib:
        there &= parse_cpuset(top.attrib["allowed_cpuset"])
    if "online_cpuset" in top.attrib:
        there &= parse_cpuset(top.attrib["online_cpuset"])
    found = _Found()
    _walk(top, _Inside(cpus=there), found, there)
    _check(found, there)
    nodes = _nodes(found, top, there)
    cores = tuple(_cores(found, nodes, allowed))
    if not any(core.usable for core in cores):
        raise ValueError("no core is usable")
    places = {cpus: node for node, cpus in sorted(nodes.items(), reverse=True) if cpus}
    gpus, nics = (
        [device._replace(numa_node=places.get(cpus & there), package=package) for device, cpus, package in devices]
        for devices in (found.gpus, found.nics)
    )
    attached, cards = attach(cores, gpus, nics)
    notes = () if found.cores else (THREADS_ALONE,)
    memory = installed_memory(sum(size for _, size in found.nodes.values()) >> 10)
    return Machine(
        cores, attached, cards, "hwloc", measured=True, numa_nodes=tuple(sorted(nodes)),
        packaged=found.packages > 0, memory=memory, notes=notes,
    )  # fmt: skip


def _walk(item: ET.Element, inside: _Inside, found: _Found, there: frozenset[int]) -> None:
    kind = item.get("type")
    if kind in _PACKAGE and parse_cpuset(item.attrib["cpuset"]) & there:
        inside = inside._replace(package=found.packages)
        found.packages += 1
    elif kind == "Core" and parse_cpuset(item.attrib["cpuset"]) & there:
        inside = inside._replace(core=found.cores)
        found.cores += 1
    elif kind == "PU" and (number := int(item.attrib["os_index"])) in there:
        found.pus.append((inside.package, inside.core, number))
    elif kind == "NUMANode":
        memory = int(item.get("local_memory", "0"))
        found.nodes[int(item.attrib["os_index"])] = parse_cpuset(item.attrib["cpuset"]) & there, memory
    elif kind in ("Bridge", "PCIDev"):
        inside = _on_bus(item, inside, found)
    elif kind == "OSDev":
        _os_device(item, inside, found)
    if "cpuset" in item.attrib:
        inside = inside._replace(cpus=parse_cpuset(item.attrib["cpuset"]) & there)
    for child in item.iterfind("object"):
        _walk(child, inside, found, there)


def _on_bus(item: ET.Element, inside: _Inside, found: _Found) -> _Inside:
    where = item.get("pci_busid") or item.get("bridge_pci") or ""
    inside = inside._replace(path=(*inside.path, where))
    words = item.get("pci_type", "").replace("[", " ").replace("]", " ").replace(":", " ").split()
    vendor = gpu_vendor(words[1], words[2], words[0]) if item.get("type") == "PCIDev" and len(words) > 2 else None
    if vendor:
        found.gpus.append((PciDevice(vendor, where, path=inside.path), inside.cpus, inside.package))
    return inside


def _os_device(item: ET.Element, inside: _Inside, found: _Found) -> None:
    name = item.get("name", "")
    kind = _OS_DEVICES.get(item.get("osdev_type", ""))
    if kind and inside.path and name:
        found.nics.append((PciDevice(kind, name, path=inside.path), inside.cpus, inside.package))


def _check(found: _Found, there: frozenset[int]) -> None:
    """Raise ValueError where the objects do not make up the machine that its own cpuset says it is."""
    numbers = [number for _, _, number in found.pus]
    if len(set(numbers)) < len(numbers):
        raise ValueError("a PU stands there twice")
    if set(numbers) != there:
        raise ValueError(f"PUs {cpu_list(there ^ set(numbers))} are in the machine's cpuset or among its objects alone")
    for kind, count, place in (("package", found.packages, 0), ("core", found.cores, 1)):
        outside = [pu[2] for pu in found.pus if pu[place] is None]
        if count and outside:
            raise ValueError(f"PUs {cpu_list(outside)} are in no {kind}, others are")


def _nodes(found: _Found, top: ET.Element, there: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return the NUMA nodes that may be used, with their CPUs; a machine without any has one of all CPUs."""
    nodes = {number: cpus for number, (cpus, _) in found.nodes.items()}
    if "allowed_nodeset" in top.attrib and top.get("allowed_nodeset") != "0xf...f":
        usable = parse_cpuset(top.attrib["allowed_nodeset"])
        nodes = {number: cpus for number, cpus in nodes.items() if number in usable}
    return nodes or {0: there}


def _cores(found: _Found, nodes: dict[int, frozenset[int]], allowed: frozenset[int] | None) -> Iterator[Core]:
    node_of = {pu: node for node, cpus in sorted(nodes.items(), reverse=True) for pu in cpus}
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (package, core, number) in enumerate(found.pus):
        groups.setdefault((package or 0, place if core is None else core), []).append(number)
    inside: dict[int, int] = {}
    for logical, ((package, _), pus) in enumerate(groups.items()):
        index = inside[package] = inside.get(package, -1) + 1
        usable = allowed is None or not allowed.isdisjoint(pus)
        yield Core(logical, package, index, node_of.get(pus[0]), _pus(pus), usable=usable)


def _pus(numbers: Iterable[int]) -> tuple[PU, ...]:
    return tuple(map(PU, sorted(numbers)))
