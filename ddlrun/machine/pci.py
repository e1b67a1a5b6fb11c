"""What hangs on a host's buses: GPUs and NICs, what they are near to, and which may be used."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine import GPU, NIC, Core

# PCI vendor -> our name of it, and the variables that restrict its GPUs, the first applied first.
VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
RESTRICTING = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
_VGA, _PROCESSING = "0300", "12"
_SERVER_DISPLAYS = ("515e", "5159", "5969", "4752", "4753")  # ATI's RN50, ES1000, Rage: they compute nothing


class PciDevice(NamedTuple):
    """A GPU or NIC on a bus. `kind`: nvidia, amd, intel; net, or an RDMA class such as infiniband.

    `path` has the buses and bridges from the root to the device, its own address last. `package` only
    counts where the NUMA node is not known.
    """

    kind: str
    name: str
    numa_node: int | None = None
    path: tuple[str, ...] = ()
    package: int | None = None


def gpu_vendor(vendor: str, device: str, pci_class: str) -> str | None:
    """Return who made a GPU that computes; None for other devices and for a server's display chip.

    All are hexadecimal without 0x: vendor and device of 4 digits, the class of 4 or 6.
    """
    name = VENDORS.get(vendor)
    if pci_class.startswith(_PROCESSING):  # MI300; other vendors have no GPUs there
        return name if name == "amd" else None
    display = pci_class.startswith(_VGA) and (name == "intel" or device in _SERVER_DISPLAYS)
    return name if pci_class.startswith("03") and not display else None


def attach(
    cores: Sequence[Core], gpus: Iterable[PciDevice], nics: Iterable[PciDevice]
) -> tuple[tuple[GPU, ...], tuple[NIC, ...]]:
    """Give each device its package and NUMA node, and each GPU its nearest NICs.

    Near is what shares most of the way from the root of the bus, then what is on the same NUMA node,
    then in the same package: nvidia-smi's PIX, PXB, PHB, NODE. Where there are RDMA devices, only
    those count.
    """
    package_of = {core.numa_node: core.package for core in reversed(cores) if core.numa_node is not None}
    packages = len({core.package for core in cores})

    def home(device: PciDevice) -> tuple[int | None, int | None]:
        if device.numa_node in package_of:
            return package_of[device.numa_node], device.numa_node
        return (0 if packages == 1 else device.package), None

    cards = [(NIC(card.name, *home(card), address(card.path), rdma), card.path) for card, rdma in _cards(nics)]
    if any(card.rdma for card, _ in cards):
        near = [(card.rdma or "", card, path) for card, path in cards if card.rdma]
    else:
        near = [(card.name, card, path) for card, path in cards]
    counted: dict[str, int] = {}
    found = []
    for gpu in sorted(gpus, key=lambda device: device.name):
        number = counted[gpu.kind] = counted.get(gpu.kind, -1) + 1
        package, node = home(gpu)
        scores = {
            name: (_shared(gpu.path, path), node is not None and node == card.numa_node, package == card.package)
            for name, card, path in near
        }
        best = max(scores.values(), default=(0, False, False))
        nearest = tuple(name for name, score in scores.items() if score == best and package is not None)
        found.append(GPU(number, package, node, gpu.name, gpu.kind, tuple(dict.fromkeys(nearest))))
    return tuple(found), tuple(card for card, _ in cards)


def address(path: Sequence[str]) -> str | None:
    """Return the last PCI address of a path (a virtio card's own name is none)."""
    return next((part for part in reversed(path) if part.count(":") == 2), None)


def granted(
    gpus: Sequence[GPU], denied: Iterable[str], uuids: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[tuple[GPU, ...], tuple[str, ...]]:
    """Return the GPUs that may be used, in the order that the user gave them, and notes on the others.

    `denied` are PCI addresses that cannot be opened, `uuids` maps PCI addresses to UUIDs, `variables` is
    what RESTRICTING names (of those that are set): indexes or UUIDs, as CUDA and ROCm read them.
    """
    closed = set(denied) & {gpu.pci_address for gpu in gpus}
    left = [gpu for gpu in gpus if gpu.pci_address not in closed]
    notes = []
    if closed:
        notes.append(f"{len(closed)} of {len(gpus)} GPUs not counted: no driver, or not allowed by the cgroup")
    result: list[GPU] = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in left):
        mine = [gpu for gpu in left if gpu.vendor == vendor]
        mine = [gpu._replace(number=number) for number, gpu in enumerate(mine)]
        for name in RESTRICTING.get(vendor or "", ()):
            if name in variables and "MIG-" not in variables[name]:
                before, mine = len(mine), list(_chosen(mine, variables[name], uuids))
                if len(mine) < before:
                    notes.append(f"{name}={variables[name]} leaves {len(mine)} of {before} GPUs")
        result += mine
    return tuple(result), tuple(notes)


def allotted(gpus: Sequence[GPU], numbers: str, minors: Mapping[str, str]) -> tuple[tuple[GPU, ...], tuple[str, ...]]:
    """Return the GPUs that a scheduler gave to the job, as device numbers "0,2", and a note on the others.

    `minors` maps PCI addresses to device numbers; without them GPUs count by address. Where no more can be
    opened than were given, it has closed the others, and they are the ones.
    """
    wanted = set(numbers.split(","))
    if len(gpus) <= len(wanted):
        return tuple(gpus), ()
    mine = [gpu for place, gpu in enumerate(gpus) if minors.get(gpu.pci_address or "", str(place)) in wanted]
    return tuple(mine), (f"{len(mine)} of {len(gpus)} GPUs are the job's",)


def installed_memory(kib: int) -> int | None:
    """Return the GiB that were sold with a host which counts `kib`: firmware and kernel keep 1 to 3 %.

    >>> installed_memory(263_852_000), installed_memory(24_500_000), installed_memory(0)
    (256, 24, None)
    """
    gib = kib / (1 << 20)
    if gib <= 0:
        return None
    step = max(1, 1 << max(0, int(gib).bit_length() - 4))
    return -(-int(gib + 0.999) // step) * step


def _cards(nics: Iterable[PciDevice]) -> Iterator[tuple[PciDevice, str | None]]:
    """Yield each card once: its interface with the RDMA device on the same bus address, or that alone."""
    devices = list(nics)
    rdma = {address(card.path) or card.name: card for card in devices if card.kind != "net"}
    nets = [card for card in devices if card.kind == "net"]
    for card in nets:
        other = rdma.get(address(card.path) or card.name)
        yield card, other.name if other else None
    taken = {address(card.path) or card.name for card in nets}
    for where, card in rdma.items():
        if where not in taken:
            yield card, card.name


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


def _chosen(gpus: Sequence[GPU], text: str, uuids: Mapping[str, str]) -> Iterator[GPU]:
    """Read a list of indexes or UUIDs as CUDA does: what follows a word that names no GPU does not count."""
    seen = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word.isdigit():
            match = [*gpus[int(word) : int(word) + 1]]
        else:
            match = [gpu for gpu in gpus if uuids.get(gpu.pci_address or "", "").startswith(word)]
        if len(match) != 1 or match[0] in seen:
            return
        seen.add(match[0])
        yield match[0]
