"""A machine that a person described: a preset of configs/machines, or the user's own YAML file.

packages: 2                 # or the cores of each, where they differ: [8, 10]
cores_per_package: 10
smt: 8                      # hardware threads per core
numa_per_package: 1
gpus: [0, 0, 1, 1]          # what each GPU hangs on: its package (or its NUMA node: gpus_by: numa);
                            # a plain number where that is not known
gpu_vendor: nvidia          # or amd, intel
rdma: true                  # InfiniBand or RoCE; leave it out where it is not known
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from ddlrun.errors import InputError
from ddlrun.machine import GPU, NIC, PU, Core, Machine

Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, le=4096)]


class MachineDescription(msgspec.Struct, forbid_unknown_fields=True):
    """The YAML file's keys."""

    packages: Count | Annotated[list[Count], msgspec.Meta(min_length=1, max_length=256)]
    cores_per_package: Count | None = None
    smt: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    numa_per_package: Count = 1
    gpus: Index | list[Index] = 0
    gpus_by: Literal["package", "numa"] = "package"
    gpu_vendor: Literal["nvidia", "amd", "intel"] = "nvidia"
    rdma: bool | None = None


def parse_machine(text: str, source: str) -> Machine:
    """Parse a machine description; `source` is the preset's or the file's name.

    Raises InputError with the key that is wrong.
    """
    try:
        told = msgspec.yaml.decode(text, type=MachineDescription)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"machine {source}: {_one_line(error)}") from error
    if isinstance(told.packages, int) == (told.cores_per_package is None):
        raise InputError(f"machine {source}: give packages: 2 with cores_per_package: 10, or packages: [10, 10]")
    sizes = told.packages if isinstance(told.packages, list) else [told.cores_per_package or 0] * told.packages
    return build(sizes, told, source)


def simple_machine(packages: int, cores: int) -> Machine:
    """Return a machine of so many packages with so many cores each, and nothing else known."""
    return build([cores] * packages, MachineDescription(packages), f"--sockets {packages} --cores {cores}")


def build(sizes: Sequence[int], told: MachineDescription, source: str) -> Machine:
    """Make the Machine; PUs and NUMA nodes are numbered in order, as nothing better is known."""
    cores: list[Core] = []
    for package, size in enumerate(sizes):
        per_node = -(-size // told.numa_per_package)
        for index in range(size):
            number = len(cores)
            pus = tuple(PU(number * told.smt + thread) for thread in range(told.smt))
            node = package * told.numa_per_package + index // per_node
            cores.append(Core(number, package, index, node, pus))
    gpus = _gpus(told, len(sizes), source)
    nics = None if told.rdma is None else (NIC("described", rdma="described"),) * told.rdma
    nodes = tuple(range(len(sizes) * told.numa_per_package))
    return Machine(tuple(cores), gpus, nics, source, measured=False, numa_nodes=nodes)


def _gpus(told: MachineDescription, packages: int, source: str) -> tuple[GPU, ...]:
    if isinstance(told.gpus, int):
        return tuple(GPU(number, vendor=told.gpu_vendor) for number in range(told.gpus))
    per_package = told.numa_per_package if told.gpus_by == "numa" else 1
    over = [home for home in told.gpus if home >= packages * per_package]
    if over:
        raise InputError(f"machine {source}: gpus: {told.gpus_by} {over[0]} is not there; they count from 0")
    by_numa = told.gpus_by == "numa" or told.numa_per_package == 1
    return tuple(
        GPU(index, home // per_package, home if by_numa else None, vendor=told.gpu_vendor)
        for index, home in enumerate(told.gpus)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).replace(" - at `$.", ", at `").replace(" - at `$`", "")
