"""Parsers of `nvidia-smi topo -m` and `nvidia-smi --query-gpu`, and the machine completed with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ddlrun.errors import HostError
from ddlrun.machine import GPU, GPU_NOTES, Machine, MachineNoteCode, machine_note
from ddlrun.machine.cpus import parse_cpu_list

# Nearest first; SYS crosses packages and is not near.
_NEAR = ("PIX", "PXB", "PHB", "NODE")
_LINK = r"X|SYS|NODE|PHB|PXB|PIX|NV\d+|PSB|N/A"
_LISTED = r"([0-9]{1,6}),(GPU-[^,]+),([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"


class GPULinks(NamedTuple):
    """A GPU's row: its CPUs and NUMA node (None: unknown), and its link to each other device."""

    cpus: frozenset[int] | None
    numa_node: int | None
    links: Mapping[str, str]


class ListedGpu(NamedTuple):
    """A GPU as --query-gpu lists it."""

    number: int
    uuid: str
    pci_address: str
    name: str


def parse_topo(text: str, host: str) -> tuple[GPULinks, ...]:
    """Parse the output of `nvidia-smi topo -m`, with tabs or blanks between columns: one row per GPU, in order.

    NICs that the matrix only counts have the names of the legend. Raises HostError with the line.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    start = next((index for index, line in enumerate(lines) if re.match(r"\s*GPU0(\s|$)", line)), None)
    if start is None:
        _fail(host, 1, "it has no matrix of GPUs", text)
    if not text.endswith("\n"):
        _fail(host, len(lines), "it is cut off", lines[-1])
    names = {match[1]: match[2] for line in lines if (match := re.fullmatch(r"\s*(NIC\d+): *(\S+)\s*", line))}
    header = [column for column in re.split(r"\s{2,}|\t", lines[start].strip()) if column]
    devices = [column for column in header if not re.search(r"Affinity|NUMA ID", column)]
    unnamed = [device for device in devices if re.fullmatch(r"NIC\d+", device) and device not in names]
    if unnamed:
        _fail(host, len(lines), f"the legend has no name of {unnamed[0]}", lines[-1])
    rest = [column for column in header if column not in devices]
    rows: list[GPULinks] = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not line.startswith("GPU"):
            break
        rows.append(_row(line, devices, rest, names, (host, number, len(rows))))
    if len(rows) != sum(column.startswith("GPU") for column in devices):
        _fail(host, start + len(rows) + 1, "rows of GPUs are missing", lines[min(start + len(rows), len(lines) - 1)])
    return tuple(rows)


def _row(
    line: str, devices: Sequence[str], rest: Sequence[str], names: Mapping[str, str], position: tuple[str, int, int]
) -> GPULinks:
    host, number, index = position
    words = line.split()
    links, more = words[1 : len(devices) + 1], words[len(devices) + 1 :]
    if words[0] != f"GPU{index}" or len(links) < len(devices) or links[index : index + 1] != ["X"]:
        _fail(host, number, f"it is not a row of GPU{index} with {len(devices)} links", line)
    if not all(re.fullmatch(_LINK, link) for link in links) or len(more) < len(rest):
        _fail(host, number, f"a link or one of {', '.join(rest)} is missing", line)
    cells = dict(zip(rest, more, strict=False))
    try:
        cpus, node = cells.get("CPU Affinity", "N/A"), cells.get("NUMA Affinity", "N/A")
        return GPULinks(
            None if cpus == "N/A" else parse_cpu_list(cpus),
            int(node) if re.fullmatch(r"[0-9]{1,6}", node) else None,
            {names.get(device, device): link for device, link in zip(devices, links, strict=True)},
        )
    except ValueError as error:
        _fail(host, number, str(error), line)


def parse_query(text: str, host: str) -> tuple[ListedGpu, ...]:
    """Parse the output of `nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader`.

    PCI addresses are in Linux's notation. Raises HostError with the line.
    """
    gpus: list[ListedGpu] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",", 3)]
        match = re.fullmatch(_LISTED, ",".join(cells[:3])) if len(cells) == 4 else None
        if not match:
            _fail(host, number, "it is not a GPU's index, UUID, address and name", line)
        address = f"{match[3][-4:]}:{match[4]}".lower()
        gpus.append(ListedGpu(int(match[1]), match[2], address, cells[3]))
    if not gpus or not text.endswith("\n"):
        _fail(host, text.count("\n") + 1, "it is cut off", text[-40:])
    return tuple(gpus)


def with_topology(machine: Machine, topo: Sequence[GPULinks] | None, listed: Sequence[ListedGpu]) -> Machine:
    """Complete a machine's GPUs: add them if it has none, and fill in unknown packages, NUMA nodes and NICs.

    Where nvidia-smi has another number of GPUs, the machine only gets a note.
    """
    count = len(listed) or len(topo or ())
    gpus: Sequence[GPU] = machine.gpus
    excluded = any(note.code in GPU_NOTES for note in machine.notes)
    if not gpus and not excluded:  # /sys may be hidden, as in some containers
        addresses: Sequence[str | None] = sorted(gpu.pci_address for gpu in listed) or [None] * count
        gpus = [GPU(number, pci_address=address, vendor="nvidia") for number, address in enumerate(addresses)]
    usable = sum(gpu.vendor == "nvidia" for gpu in gpus)
    counts = {count, count if topo is None else len(topo)}
    if counts != {usable}:
        numbers = " or ".join(map(str, sorted(counts)))
        note = machine_note(MachineNoteCode.GPUS_DIFFER, listed=numbers, usable=usable)
        return machine._replace(notes=(*machine.notes, note)) if machine.gpus != () or count else machine
    if topo is None:
        return machine._replace(gpus=tuple(gpus))
    rows = zip(topo, _locations(machine, topo), strict=True)
    return machine._replace(gpus=tuple(_filled(gpu, *next(rows)) if gpu.vendor == "nvidia" else gpu for gpu in gpus))


def _filled(gpu: GPU, row: GPULinks, location: tuple[int | None, int | None]) -> GPU:
    package, node = location if gpu.package is None else (gpu.package, gpu.numa_node)
    return gpu._replace(package=package, numa_node=node, nics=gpu.nics or _nics(row))


def _locations(machine: Machine, topo: Sequence[GPULinks]) -> Iterator[tuple[int | None, int | None]]:
    """Yield (package, NUMA node) of each GPU.

    If all GPUs have the same affinity on a machine with several packages, it means nothing.
    """
    package_of = {core.numa_node: core.package for core in reversed(machine.cores) if core.numa_node is not None}
    packages = len(machine.packages)
    same = len(topo) > 1 and len({row.cpus for row in topo}) == 1 and packages > 1
    for row in topo:
        if row.numa_node in package_of:
            yield package_of[row.numa_node], row.numa_node
        elif packages == 1:
            yield 0, None
        elif same or row.cpus is None or not machine.measured:
            yield None, None
        else:
            inside = {core.package for core in machine.cores if any(pu.os_index in row.cpus for pu in core.pus)}
            yield (next(iter(inside)) if len(inside) == 1 else None), None


def _nics(row: GPULinks) -> tuple[str, ...]:
    links = {name: link for name, link in row.links.items() if not re.fullmatch(r"GPU\d+", name)}
    nearest = next((link for link in _NEAR if link in links.values()), None)
    return tuple(sorted(name for name, link in links.items() if link == nearest)) if nearest else ()


def _fail(host: str, line: int, problem: str, text: str) -> NoReturn:
    quoted = " ".join(text.split())[:60]
    raise HostError(host, f"nvidia-smi, line {line}: {problem} ({quoted!r}); see nvidia-smi there")
