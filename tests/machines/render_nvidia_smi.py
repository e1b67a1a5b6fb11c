"""The output of `nvidia-smi topo -m` and of `nvidia-smi --query-gpu` for a machine."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from ddlrun.ranges import render_ranges
from tests.machines.cpu_groups import Cpus
from tests.machines.facts import Device, Facts
from tests.machines.render_sysfs import node_near


class Style(NamedTuple):
    """Differences between drivers and terminals.

    `numa` is the column of NUMA nodes: there is none, it has their numbers, or N/A. With `same_affinity` all GPUs have
    the CPUs of the first one. With `legend` NICs are NIC0, NIC1, ... in the matrix. `nics` is the order of the NICs.
    """

    numa: Literal["", "number", "N/A"] = "number"
    same_affinity: bool = False
    legend: bool = False
    blanks: bool = False
    nics: tuple[str, ...] = ()


DEFAULT = Style()


def render_topo(facts: Facts, style: Style = DEFAULT) -> str:
    """Return the matrix of the links between GPUs and RDMA devices."""
    nics = sorted((nic for nic in facts.nics if nic.rdma), key=lambda nic: nic.rdma or "")
    nics.sort(key=lambda nic: style.nics.index(nic.rdma or "") if style.nics else 0)
    devices = [*facts.gpus, *nics]
    names = [f"GPU{number}" for number in range(len(facts.gpus))]
    names += [f"NIC{number}" if style.legend else nic.rdma or "" for number, nic in enumerate(nics)]
    header = ["", *names, "CPU Affinity", *(["NUMA Affinity"] if style.numa else [])]
    rows = [[name, *_links(facts, devices, place)] for place, name in enumerate(names)]
    for row, gpu in zip(rows, facts.gpus, strict=False):
        row.extend(_affinity(facts, facts.gpus[0] if style.same_affinity else gpu, style))
    legend = [f"  {name}: {nic.rdma}" for name, nic in zip(names[len(facts.gpus) :], nics, strict=True) if style.legend]
    lines = list(_aligned([header, *rows]) if style.blanks else map("\t".join, (header, *rows)))
    return "\n".join([*lines, "", *(["NIC Legend:", "", *legend] if legend else []), ""])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines with two or more blanks between columns."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) + 2 for column in range(len(rows[0]))]
    for row in rows:
        yield "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _affinity(facts: Facts, gpu: Device, style: Style) -> Iterator[str]:
    yield render_ranges(gpu.near & facts.online)
    if style.numa:
        yield str(node_near(facts, gpu.near)) if style.numa == "number" else "N/A"


def _links(facts: Facts, devices: Sequence[Device], place: int) -> Iterator[str]:
    for other in range(len(devices)):
        if (place, other) in facts.links:
            yield f"NV{facts.links[place, other]}"
        else:
            yield " X " if other == place else _bus_link(facts, devices[place], devices[other])


def _bus_link(facts: Facts, first: Device, second: Device) -> str:
    """Return nvidia-smi's word for the path between two devices."""
    common = sum(1 for left, right in zip(first.path, second.path, strict=False) if left == right)
    if common > 1:
        return "PIX" if common == len(first.path) - 1 == len(second.path) - 1 else "PXB"
    if common:
        return "PHB"
    return "NODE" if _package(facts, first.near) == _package(facts, second.near) else "SYS"


def _package(facts: Facts, near: Cpus) -> int:
    return next((index for index, cpus in facts.packages.items() if near <= cpus), -1)


def render_query(facts: Facts) -> str:
    """Return the output of `--query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader`."""
    return "".join(
        f"{number}, GPU-00000000-0000-0000-0000-{number:012x}, 0000{gpu.address.upper()}, NVIDIA GPU\n"
        for number, gpu in enumerate(facts.gpus)
    )
