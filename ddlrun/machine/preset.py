"""Machines described in YAML: the presets of configs/machines, and the user's own files.

packages: 2                 # or the cores of each, if they differ: [8, 10]
cores_per_package: 10
smt: 8                      # hardware threads per core
numa_per_package: 1
l3_per_numa: 2              # L3 domains per NUMA node; leave it out if unknown
gpus: [0, 0, 1, 1]          # each GPU's package (or its NUMA node: gpus_by: numa);
                            # only their number, if that is unknown
gpu_vendor: nvidia          # or amd, intel
rdma: true                  # InfiniBand or RoCE; leave it out if unknown
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Literal

import msgspec

from ddlrun.errors import InputError
from ddlrun.machine import GPU, NIC, PU, Core, Machine
from ddlrun.machine.locality import Locality, with_locality

Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, le=4096)]


class MachineDescription(msgspec.Struct, forbid_unknown_fields=True):
    """The hardware of a host: a file for --machine, or a preset."""

    packages: Count | Annotated[list[Count], msgspec.Meta(min_length=1, max_length=256)]
    """Number of packages, with cores_per_package; or the number of cores of each: [8, 10]."""
    cores_per_package: Count | None = None
    """Number of cores of each package."""
    smt: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    """Number of hardware threads per core."""
    numa_per_package: Count = 1
    """Number of NUMA nodes per package."""
    l3_per_numa: Count | None = None
    """Number of L3 domains per NUMA node; leave it out if unknown."""
    gpus: Index | list[Index] = 0
    """The package of each GPU, from 0: [0, 0, 1, 1]; or the number of GPUs, if their packages are unknown."""
    gpus_by: Literal["package", "numa"] = "package"
    """Whether `gpus` has packages or NUMA nodes."""
    gpu_vendor: Literal["nvidia", "amd", "intel"] = "nvidia"
    """The vendor of the GPUs."""
    rdma: bool | None = None
    """Whether there are RDMA devices (InfiniBand, RoCE); leave it out if unknown."""


def parse_machine(text: str, source: str) -> Machine:
    """Parse a machine description; `source` is the preset's or the file's name.

    Raises InputError with the key that is wrong.
    """
    try:
        description = msgspec.yaml.decode(text, type=MachineDescription)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"machine {source}: {_one_line(error)}; ddlrun show schema machine lists the keys") from error
    if isinstance(description.packages, int) == (description.cores_per_package is None):
        raise InputError(f"machine {source}: give packages: 2 with cores_per_package: 10, or packages: [10, 10]")
    sizes = (
        description.packages
        if isinstance(description.packages, list)
        else [description.cores_per_package or 0] * description.packages
    )
    return build(sizes, description, source)


def simple_machine(packages: int, cores: int) -> Machine:
    """Return a machine with `packages` packages of `cores` cores each, and nothing else."""
    return build([cores] * packages, MachineDescription(packages), f"--sockets {packages} --cores {cores}")


def build(sizes: Sequence[int], description: MachineDescription, source: str) -> Machine:
    """Return the machine of a description; its PUs and NUMA nodes are numbered in order."""
    cores: list[Core] = []
    for package, size in enumerate(sizes):
        per_node = -(-size // description.numa_per_package)
        for index in range(size):
            number = len(cores)
            pus = tuple(PU(number * description.smt + thread) for thread in range(description.smt))
            node = package * description.numa_per_package + index // per_node
            cores.append(Core(number, package, index, node, pus))
    gpus = _gpus(description, len(sizes), source)
    nics: tuple[NIC, ...] | None = None if description.rdma is None else ()
    if description.rdma:
        nics = (NIC("described", rdma="described"),)
    nodes = tuple(range(len(sizes) * description.numa_per_package))
    located = with_locality(cores, Locality(l3_domains=_l3_domains(cores, description.l3_per_numa)))
    return Machine(located, gpus, nics, source, measured=False, numa_nodes=nodes)


def _l3_domains(cores: Sequence[Core], per_node: int | None) -> Iterator[frozenset[int]]:
    """Yield the PUs of each L3 domain: an equal number of neighbouring cores of a NUMA node."""
    if per_node is not None:
        for _, members in groupby(cores, key=lambda core: core.numa_node):
            inside = list(members)
            size = -(-len(inside) // per_node)
            for start in range(0, len(inside), size):
                yield frozenset(pu.os_index for core in inside[start : start + size] for pu in core.pus)


def _gpus(description: MachineDescription, packages: int, source: str) -> tuple[GPU, ...]:
    if isinstance(description.gpus, int):
        return tuple(GPU(number, vendor=description.gpu_vendor) for number in range(description.gpus))
    per_package = description.numa_per_package if description.gpus_by == "numa" else 1
    unknown = [home for home in description.gpus if home >= packages * per_package]
    if unknown:
        raise InputError(f"machine {source}: gpus: there is no {description.gpus_by} {unknown[0]}; they count from 0")
    by_numa = description.gpus_by == "numa" or description.numa_per_package == 1
    return tuple(
        GPU(index, home // per_package, home if by_numa else None, vendor=description.gpu_vendor)
        for index, home in enumerate(description.gpus)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).replace(" - at `$.", ", at `").replace(" - at `$`", "")
