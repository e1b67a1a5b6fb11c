"""Parsers of `nvidia-smi topo -m` and `nvidia-smi --query-gpu`, and the machine completed with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ddlrun.errors import HostError
from ddlrun.machine import GPU, GPU_NOTES, Machine, MachineNoteCode, machine_note
from ddlrun.machine.pci import only
from ddlrun.ranges import parse_ranges

# Nearest first; SYS, which old drivers call SOC, crosses packages and is not near.
_NEAR = ("PIX", "PXB", "PHB", "NODE")
_LINK = r"N/A|ERR!|[A-Z][A-Z0-9]{0,5}"
_AFFINITY = r"CPU Affinity|NUMA Affinity|GPU NUMA ID"
_COLOUR = r"(?:\x1b|\ufffd|\^\[)?\[[0-9;]*[mK]"
_LISTED = r"([0-9]{1,6}),(GPU-[^,]+),([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"


class GPULinks(NamedTuple):
    """A GPU's row: its CPUs (None: unknown), the NUMA nodes near it, and its link to each other device."""

    cpus: frozenset[int] | None
    numa_nodes: frozenset[int]
    links: Mapping[str, str]


class ListedGpu(NamedTuple):
    """A GPU as --query-gpu lists it."""

    number: int
    pci_address: str
    name: str


def parse_topo(text: str, host: str) -> tuple[GPULinks, ...]:
    """Parse the output of `nvidia-smi topo -m`, with tabs or blanks between columns: one row per GPU, in order.

    Lines may be wrapped. NICs that the matrix only counts have the names of the legend. Raises HostError with the line.
    """
    lines = [line.lstrip(" ") for line in re.sub(_COLOUR, "", text).splitlines()]
    start = next((index for index, line in enumerate(lines) if re.match(r"\s*GPU0(\s|$)", line)), None)
    if start is None:
        _fail(host, 1, "it has no matrix of GPUs", text)
    if not text.endswith("\n"):
        _fail(host, len(lines), "it is cut off", lines[-1])
    names = {match[1]: match[2] for line in lines if (match := re.fullmatch(r"\s*(NIC\d+): *(\S+)\s*", line))}
    (_, header), *numbered = _unwrapped(lines, start)
    columns = header[: _first_affinity(header)].split()
    unnamed = [device for device in columns if re.fullmatch(r"NIC\d+", device) and device not in names]
    if unnamed:
        _fail(host, len(lines), f"the legend has no name of {unnamed[0]}", lines[-1])
    gpus = [(number, line) for number, line in numbered if line.startswith("GPU")]
    if len(gpus) != sum(column.startswith("GPU") for column in columns):
        number = min(start + len(gpus), len(lines) - 1)
        _fail(host, number + 1, "rows of GPUs are missing", lines[number])
    return tuple(_row(line, header, names, (host, number, index)) for index, (number, line) in enumerate(gpus))


def _unwrapped(lines: Sequence[str], start: int) -> list[tuple[int, str]]:
    """Return the numbers and texts of the header and the rows, which end at a blank line or a legend."""
    devices = frozenset(lines[start].split())
    rows = [(start + 1, lines[start])]
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not line.strip() or "Legend:" in line:
            break
        first = line.split()[0]
        if first in devices or re.fullmatch(r"(GPU|NIC)\d+", first):
            rows.append((number, line))
        else:
            before, after = rows[-1][1].rstrip(), line.lstrip()
            between = "" if before[-1] in ",-" or after[0] in ",-" else "\t" if "\t" in before else " "
            rows[-1] = rows[-1][0], f"{before}{between}{after}"
    return rows


def _first_affinity(header: str) -> int:
    """Return the place of the first column in a header that is not a device."""
    match = re.search(_AFFINITY, header)
    return match.start() if match else len(header)


def _row(line: str, header: str, names: Mapping[str, str], position: tuple[str, int, int]) -> GPULinks:
    host, number, index = position
    devices = header[: _first_affinity(header)].split()
    words = line.split()
    links = words[1 : len(devices) + 1]
    if words[0] != f"GPU{index}" or len(links) < len(devices) or links[index : index + 1] != ["X"]:
        _fail(host, number, f"it is not a row of GPU{index} with {len(devices)} links", line)
    if not all(re.fullmatch(_LINK, link) for link in links):
        _fail(host, number, "a link is missing", line)
    cells = _affinities(line, re.findall(_AFFINITY, header), len(devices))
    cpus, nodes = cells.get("CPU Affinity", "").replace("N/A", ""), cells.get("NUMA Affinity", "")
    nodes = nodes if re.fullmatch(r"\d[\d,-]*", nodes) else ""
    near = {names.get(device, device): link for device, link in zip(devices, links, strict=True)}
    try:
        return GPULinks(parse_ranges(cpus) or None, parse_ranges(nodes), near)
    except ValueError as error:
        _fail(host, number, str(error), line)


def _affinities(line: str, names: Sequence[str], devices: int) -> dict[str, str]:
    """Return the cells of a row behind its links, by their names; none where cells are blank and tabs lost."""
    if "\t" in line:  # newer drivers print more tabs than columns
        cells = [cell.strip() for cell in line.split("\t")][devices + 1 :]
    else:
        cells = line.split()[devices + 1 :]
        cells = cells if len(cells) >= len(names) else []
    return dict(zip(names, cells, strict=False))


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
        gpus.append(ListedGpu(int(match[1]), address, cells[3]))
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
    known = (gpu.package, gpu.numa_node)
    package, node = (other if value is None else value for value, other in zip(known, location, strict=True))
    return gpu._replace(package=package, numa_node=node, nics=gpu.nics or _nics(row))


def _locations(machine: Machine, topo: Sequence[GPULinks]) -> Iterator[tuple[int | None, int | None]]:
    """Yield (package, NUMA node) of each GPU, as far as the cores near it have one in common.

    If all GPUs have the CPUs of several packages, these mean nothing.
    """
    package = only(core.package for core in machine.cores)
    same = len(topo) > 1 and len({row.cpus for row in topo}) == 1 and package is None
    for row in topo:
        cpus = row.cpus if row.cpus and machine.measured and not same else frozenset()
        by_node = [core for core in machine.cores if core.numa_node in row.numa_nodes]
        by_cpus = [core for core in machine.cores if any(pu.os_index in cpus for pu in core.pus)]
        near = [core for core in by_node if core in by_cpus] or by_node or by_cpus
        yield only(core.package for core in near) if near else package, only(core.numa_node for core in near)


def _nics(row: GPULinks) -> tuple[str, ...]:
    links = {name: link for name, link in row.links.items() if not re.fullmatch(r"GPU\d+", name)}
    nearest = next((link for link in _NEAR if link in links.values()), None)
    return tuple(sorted(name for name, link in links.items() if link == nearest)) if nearest else ()


def _fail(host: str, line: int, problem: str, text: str) -> NoReturn:
    quoted = " ".join(text.split())[:60]
    raise HostError(host, f"nvidia-smi, line {line}: {problem} ({quoted!r}); see nvidia-smi there")
