"""What `nvidia-smi topo -m` and `nvidia-smi --query-gpu` print, and what it adds to a Machine."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ddlrun.errors import UnreachableError
from ddlrun.machine import GPU, Machine
from ddlrun.machine.cpus import parse_cpu_list

# The nearer first; SYS crosses packages and is not near.
_NEAR = ("PIX", "PXB", "PHB", "NODE")
_LINK = r"X|SYS|NODE|PHB|PXB|PIX|NV\d+|PSB|N/A"
_LISTED = r"([0-9]{1,6}),(GPU-[^,]+),([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"


class GPULinks(NamedTuple):
    """A GPU's row: its CPUs and NUMA node (None: not said), and how it is linked to each other device."""

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
    """Parse `nvidia-smi topo -m`, its columns parted by tabs or blanks: a row a GPU, in their order.

    NICs have the names of the legend where there is one. Raises UnreachableError with the line.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    start = next((place for place, line in enumerate(lines) if re.match(r"\s*GPU0(\s|$)", line)), None)
    if start is None:
        _fail(host, 1, "no matrix of GPUs", text)
    names = {match[1]: match[2] for line in lines if (match := re.fullmatch(r"\s*(NIC\d+): *(\S+)\s*", line))}
    header = [column for column in re.split(r"\s{2,}|\t", lines[start].strip()) if column]
    devices = [column for column in header if not re.search(r"Affinity|NUMA ID", column)]
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
    line: str, devices: Sequence[str], rest: Sequence[str], names: Mapping[str, str], at: tuple[str, int, int]
) -> GPULinks:
    host, number, index = at
    words = line.split()
    links, more = words[1 : len(devices) + 1], words[len(devices) + 1 :]
    if words[0] != f"GPU{index}" or len(links) < len(devices) or links[index : index + 1] != ["X"]:
        _fail(host, number, f"no row of GPU{index} with {len(devices)} links", line)
    if not all(re.fullmatch(_LINK, link) for link in links) or len(more) < len(rest):
        _fail(host, number, f"a link or one of {', '.join(rest)} is missing", line)
    told = dict(zip(rest, more, strict=False))
    try:
        cpus, node = told.get("CPU Affinity", "N/A"), told.get("NUMA Affinity", "N/A")
        return GPULinks(
            None if cpus == "N/A" else parse_cpu_list(cpus),
            int(node) if re.fullmatch(r"[0-9]{1,6}", node) else None,
            {names.get(device, device): link for device, link in zip(devices, links, strict=True)},
        )
    except ValueError as error:
        _fail(host, number, str(error), line)


def parse_query(text: str, host: str) -> tuple[ListedGpu, ...]:
    """Parse `nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader`.

    Addresses are as Linux writes them. Raises UnreachableError with the line, or with nvidia-smi's own words.
    """
    found: list[ListedGpu] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",", 3)]
        match = re.fullmatch(_LISTED, ",".join(cells[:3])) if len(cells) == 4 else None
        if not match:
            _fail(host, number, "no GPU's index, UUID, address and name", line)
        address = f"{match[3][-4:]}:{match[4]}".lower()
        found.append(ListedGpu(int(match[1]), match[2], address, cells[3]))
    return tuple(found)


def with_topology(machine: Machine, topo: Sequence[GPULinks] | None, listed: Sequence[ListedGpu]) -> Machine:
    """Fill in what a machine does not know of its GPUs: that there are any, their package, node and NICs.

    What it knows already stays. Where the numbers of GPUs differ, it gets a note and is else as it was.
    """
    count = len(listed) or len(topo or ())
    gpus: Sequence[GPU] = machine.gpus
    if not gpus and not any("GPU" in note for note in machine.notes):  # /sys may be hidden, as in some containers
        addresses: Sequence[str | None] = sorted(gpu.pci_address for gpu in listed) or [None] * count
        gpus = [GPU(number, pci_address=address, vendor="nvidia") for number, address in enumerate(addresses)]
    mine = [gpu for gpu in gpus if gpu.vendor == "nvidia"]
    if len(mine) != count or (topo is not None and len(topo) != count):
        note = f"nvidia-smi shows {count} GPUs, {len(mine)} may be used"
        return machine._replace(notes=(*machine.notes, note)) if machine.gpus != () or count else machine
    if topo is None:
        return machine._replace(gpus=tuple(gpus))
    homes = list(_homes(machine, topo))
    filled = iter(zip(topo, homes, strict=True))
    return machine._replace(gpus=tuple(_filled(gpu, *next(filled)) if gpu.vendor == "nvidia" else gpu for gpu in gpus))


def _filled(gpu: GPU, row: GPULinks, home: tuple[int | None, int | None]) -> GPU:
    package, node = home if gpu.package is None else (gpu.package, gpu.numa_node)
    return gpu._replace(package=package, numa_node=node, nics=gpu.nics or _nics(row))


def _homes(machine: Machine, topo: Sequence[GPULinks]) -> Iterator[tuple[int | None, int | None]]:
    """Yield (package, NUMA node) of each GPU; one affinity for all of several packages says nothing."""
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


def _fail(host: str, line: int, what: str, text: str) -> NoReturn:
    said = " ".join(text.split())[:60]
    raise UnreachableError(f"host {host}: nvidia-smi, line {line}: {what} ({said!r}); see nvidia-smi there")
