"""GPUs and NICs on a host's buses: their locations, and which of the GPUs may be used."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine import GPU, NIC, Core, MachineNote, MachineNoteCode, machine_note

# PCI vendor IDs and their names; per vendor the variables that restrict its GPUs, in the order of their application.
VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
# Set for a container by whoever starts it. CUDA does not read it.
OF_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_SELECTOR = "ONEAPI_DEVICE_SELECTOR"
RESTRICTING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", OF_CONTAINER),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "intel": ("ZE_AFFINITY_MASK", _SELECTOR),
}
CHOOSING = tuple(dict.fromkeys(name for names in RESTRICTING.values() for name in names))
# Variable -> variables that override it. HIP reads CUDA's only without its own.
_HIDDEN_BY = {
    OF_CONTAINER: ("CUDA_VISIBLE_DEVICES",),
    "CUDA_VISIBLE_DEVICES": ("HIP_VISIBLE_DEVICES",),
    "GPU_DEVICE_ORDINAL": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
# Numbers identify GPUs only if CUDA counts them by address, as it always does with GPUs of one model.
ORDER, BY_ADDRESS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_MIG = "MIG-"
_VGA, _PROCESSING = "0300", "12"
_SERVER_DISPLAYS = ("515e", "5159", "5969", "4752", "4753")  # ATI's RN50, ES1000, Rage, which cannot compute


class PciDevice(NamedTuple):
    """A GPU or NIC on a bus. `kind` is nvidia, amd or intel, or net or an RDMA class such as infiniband.

    `path` has the buses and bridges from the root to the device, whose own address is last. `cpus` are the
    CPUs near it; they count only if the NUMA node is unknown.
    """

    kind: str
    name: str
    numa_node: int | None = None
    path: tuple[str, ...] = ()
    cpus: frozenset[int] = frozenset()


def gpu_vendor(vendor: str, device: str, pci_class: str) -> str | None:
    """Return the vendor of a GPU that can compute; None for other devices and for a server's display chip.

    Arguments are hexadecimal without 0x: vendor and device with 4 digits, the class with 4 or 6.
    """
    name = VENDORS.get(vendor)
    if pci_class.startswith(_PROCESSING):  # MI300; no other vendor has GPUs in this class
        return name if name == "amd" else None
    display = pci_class.startswith(_VGA) and (name == "intel" or device in _SERVER_DISPLAYS)
    return name if pci_class.startswith("03") and not display else None


def only(values: Iterable[int | None]) -> int | None:
    """Return the value that all have in common; None if they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def attach(
    cores: Sequence[Core], gpus: Iterable[PciDevice], nics: Iterable[PciDevice]
) -> tuple[tuple[GPU, ...], tuple[NIC, ...]]:
    """Return the GPUs and NICs with their packages and NUMA nodes, and each GPU's nearest NICs.

    The package is that of the cores of the device's NUMA node, or of the cores near it: hosts number packages
    by the cores that may be used, and devices may be near to others.
    """
    core_of = {pu.os_index: core for core in cores for pu in core.pus}
    by_node: defaultdict[int, list[Core]] = defaultdict(list)
    for core in cores:
        if core.numa_node is not None:
            by_node[core.numa_node].append(core)

    def location(device: PciDevice) -> tuple[int | None, int | None]:
        if device.numa_node is None and not device.cpus:
            return only(core.package for core in cores), None
        inside = [] if device.numa_node is None else by_node[device.numa_node]
        near = [core_of[cpu] for cpu in device.cpus if cpu in core_of]
        near = [core for core in near if core in inside] or inside or near
        return only(core.package for core in near), only(core.numa_node for core in near)

    cards = [(NIC(card.name, *location(card), address(card.path), rdma), card.path) for card, rdma in _cards(nics)]
    counts: Counter[str] = Counter()  # how many GPUs of each vendor have been numbered
    attached = []
    for device in sorted(gpus, key=lambda device: device.name):
        package, node = location(device)
        l3 = only(core_of[cpu].l3 for cpu in device.cpus if cpu in core_of)
        gpu = GPU(counts[device.kind], package, node, pci_address=device.name, vendor=device.kind, l3=l3)
        counts[device.kind] += 1
        attached.append(gpu._replace(nics=_nearest_nics(gpu, device.path, cards)))
    return tuple(attached), tuple(card for card, _ in cards)


def _nearest_nics(gpu: GPU, path: Sequence[str], cards: Sequence[tuple[NIC, Sequence[str]]]) -> tuple[str, ...]:
    """Return the names of the NICs nearest to a GPU; only RDMA devices, if there are any.

    Near are those that share most of the path from the root of the bus, then those on the same NUMA node,
    then those of the same package: nvidia-smi's PIX, PXB, PHB, NODE.
    """
    if gpu.package is None:
        return ()
    only_rdma = any(card.rdma for card, _ in cards)
    scores: dict[str, tuple[int, bool, bool]] = {}
    for card, card_path in cards:
        name = card.rdma if only_rdma else card.name
        if name:
            same_node = gpu.numa_node is not None and gpu.numa_node == card.numa_node
            scores[name] = (_common_length(path, card_path), same_node, gpu.package == card.package)
    best = max(scores.values(), default=None)
    return tuple(name for name, score in scores.items() if score == best)


def address(path: Sequence[str]) -> str | None:
    """Return the last PCI address of a path (the name of a virtio card is not a PCI address)."""
    return next((part for part in reversed(path) if part.count(":") == 2), None)


def granted(
    gpus: Sequence[GPU], denied: Iterable[str], uuids: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[tuple[GPU, ...], tuple[MachineNote, ...]]:
    """Return the GPUs that may be used, in the user's order, and notes on the others.

    MIG devices, tiles, and numbers in an unknown order are counted, but not located.

    Args:
        gpus: all GPUs of the machine.
        denied: PCI addresses of GPUs that cannot be opened.
        uuids: the UUIDs of GPUs, by PCI address.
        variables: those of RESTRICTING that are set, as the drivers read them, and ORDER.
    """
    closed = set(denied) & {gpu.pci_address for gpu in gpus}
    opened = [gpu for gpu in gpus if gpu.pci_address not in closed]
    notes = []
    if closed:
        notes.append(machine_note(MachineNoteCode.GPUS_CLOSED, closed=len(closed), gpus=len(gpus)))
    usable: list[GPU] = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in opened):
        chosen = [gpu for gpu in opened if gpu.vendor == vendor]
        chosen = [gpu._replace(number=number) for number, gpu in enumerate(chosen)]
        in_order = vendor == "amd" or (vendor == "nvidia" and variables.get(ORDER) == BY_ADDRESS)
        for name in _applied(vendor or "", variables):
            text = _selected(variables[name], len(chosen)) if name == _SELECTOR else variables[name]
            if text is None:
                continue
            before, (chosen, code) = len(chosen), _choose(chosen, text, uuids, in_order=in_order)
            if len(chosen) < before or code is not MachineNoteCode.GPUS_RESTRICTED:
                values = {"variable": name, "value": variables[name], "left": len(chosen), "gpus": before}
                notes.append(machine_note(code, **values))
        usable += chosen
    return tuple(usable), tuple(notes)


def allocated(
    gpus: Sequence[GPU], numbers: str, minors: Mapping[str, str]
) -> tuple[tuple[GPU, ...], tuple[MachineNote, ...]]:
    """Return the GPUs that a scheduler allocated to the job, as device numbers "0,2", and a note on the others.

    `minors` maps PCI addresses to device numbers; without them, GPUs count by address. If no more GPUs can be
    opened than were allocated, the scheduler has closed the others, and all that are left are the job's.
    """
    job_numbers = set(numbers.split(","))
    if len(gpus) <= len(job_numbers):
        return tuple(gpus), ()
    job_gpus = [gpu for index, gpu in enumerate(gpus) if minors.get(gpu.pci_address or "", str(index)) in job_numbers]
    return tuple(job_gpus), (machine_note(MachineNoteCode.GPUS_ALLOCATED, allocated=len(job_gpus), gpus=len(gpus)),)


def installed_memory(kib: int) -> int | None:
    """Return the nominal memory in GiB of a host that reports `kib`: firmware and kernel reserve 1 to 3 %.

    >>> installed_memory(263_852_000), installed_memory(24_500_000), installed_memory(0)
    (256, 24, None)
    """
    gib = kib / (1 << 20)
    if gib <= 0:
        return None
    step = max(1, 1 << max(0, int(gib).bit_length() - 4))
    return -(-int(gib + 0.999) // step) * step


def _cards(nics: Iterable[PciDevice]) -> Iterator[tuple[PciDevice, str | None]]:
    """Yield each card and its RDMA device: an interface with the device at its bus address, or a device alone."""
    devices = list(nics)
    rdma = {address(card.path) or card.name: card for card in devices if card.kind != "net"}
    nets = [card for card in devices if card.kind == "net"]
    for card in nets:
        other = rdma.get(address(card.path) or card.name)
        yield card, other.name if other else None
    with_interface = {address(card.path) or card.name for card in nets}
    for location, card in rdma.items():
        if location not in with_interface:
            yield card, card.name


def _common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the common beginning of two paths."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(first), len(second)))


def _applied(vendor: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the variables that restrict a vendor's GPUs, in the order of their application."""
    given = {name: variables[name] for name in RESTRICTING.get(vendor, ()) if name in variables}
    for name, value in given.items():
        hidden = any(other in given for other in _HIDDEN_BY.get(name, ()))
        if not hidden and not (name == "CUDA_VISIBLE_DEVICES" and value == given.get("ROCR_VISIBLE_DEVICES")):
            yield name


def _selected(selector: str, count: int) -> str | None:
    """Return the numbers of the Level Zero devices that SYCL's selector leaves of `count`; None: all.

    >>> _selected("opencl:cpu;level_zero:1,0.0", 2), _selected("!level_zero:0", 3), _selected("*:gpu", 2)
    ('1,0.0', '1,2', None)
    """
    words: dict[str, list[str]] = {"": [], "!": []}
    for sign, devices in re.findall(r"(!?)(?:level_zero|\*):([^;]*)", selector.lower()):
        words[sign] += devices.split(",")
    every = [str(number) for number in range(count)]
    numbers = words[""] if words[""] and all(word[:1].isdigit() for word in words[""]) else every
    left = [number for number in numbers if number not in words["!"]]
    return None if left == every else ",".join(left)


def _choose(
    gpus: Sequence[GPU], text: str, uuids: Mapping[str, str], *, in_order: bool
) -> tuple[list[GPU], MachineNoteCode]:
    """Return the GPUs of a list of indexes or UUIDs, or GPUs without address for devices that cannot be located."""
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if any(word.startswith(_MIG) for word in words):
        devices = [_mig_device(word, gpus, uuids)._replace(number=number) for number, word in enumerate(words)]
        return devices, MachineNoteCode.GPUS_PARTITIONED
    named = any(word.startswith("GPU-") for word in words)
    known = all(gpu.pci_address in uuids for gpu in gpus) if named else in_order
    if known or not any(word[:1].isdigit() or word.startswith("GPU-") for word in words):
        return list(_visible(gpus, words, uuids)), MachineNoteCode.GPUS_RESTRICTED
    return [GPU(number) for number in range(len(words))], MachineNoteCode.GPUS_UNLOCATED


def _mig_device(word: str, gpus: Sequence[GPU], uuids: Mapping[str, str]) -> GPU:
    """Return a MIG device where its GPU is, if that is known: the only one, or named as in MIG-GPU-UUID/1/0."""
    parent = word.removeprefix(_MIG).partition("/")[0]
    parents = [gpu for gpu in gpus if uuids.get(gpu.pci_address or "", "").startswith(parent)]
    home = parents if len(parents) == 1 else gpus
    return home[0]._replace(pci_address=None) if len(home) == 1 else GPU(0, vendor="nvidia")


def _visible(gpus: Sequence[GPU], words: Sequence[str], uuids: Mapping[str, str]) -> Iterator[GPU]:
    """Yield the GPUs of indexes or UUIDs as CUDA reads them: it ends at a word that names no GPU."""
    earlier = set()
    for word in words:
        if word.isdigit():
            matches = [*gpus[int(word) : int(word) + 1]]
        else:
            matches = [gpu for gpu in gpus if uuids.get(gpu.pci_address or "", "").startswith(word)]
        if len(matches) != 1 or matches[0] in earlier:
            return
        earlier.add(matches[0])
        yield matches[0]
