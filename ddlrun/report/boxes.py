"""Boxes of a machine: packages with their cores and devices, and the marks of local ranks on cores."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine import GPU, NIC, Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement

# The character of each local rank; the cores of a package stand in rows of up to ROW.
SIGNS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROW = 32
MARKS = "the local rank on it (0-9a-zA-Z, then +); . none, * several, x not usable"


class PackageBox(NamedTuple):
    """A package: its number, its cores by NUMA node, and its devices; `labelled`: NUMA nodes are named."""

    package: int
    labelled: bool
    nodes: tuple[tuple[int | None, tuple[Core, ...]], ...]
    gpus: tuple[GPU, ...]
    nics: tuple[NIC, ...]


class MachineBoxes(NamedTuple):
    """The packages of a machine, the GPUs and NICs whose package is unknown, and the local ranks on its cores."""

    packages: tuple[PackageBox, ...]
    gpus: tuple[GPU, ...]
    nics: tuple[NIC, ...]
    local_ranks: Sequence[LocalRankPlacement]
    owners: Mapping[int, list[int]]
    """The logical index of a core -> the local ranks on it."""


def boxes_of(machine: Machine, local_ranks: Sequence[LocalRankPlacement]) -> MachineBoxes:
    """Return the boxes of a machine with its local ranks."""
    homes = {core.numa_node for core in machine.cores}
    labelled = len(homes) > 1 and any(core.numa_node not in (None, core.package) for core in machine.cores)
    packages = []
    for package, cores in enumerate(machine.packages):
        nodes: dict[int | None, list[Core]] = {}
        for core in cores:
            nodes.setdefault(core.numa_node, []).append(core)
        packages.append(
            PackageBox(
                package=package,
                labelled=labelled,
                nodes=tuple((node, tuple(members)) for node, members in nodes.items()),
                gpus=tuple(gpu for gpu in machine.gpus if gpu.package == package),
                nics=tuple(nic for nic in machine.nics or () if nic.package == package),
            )
        )
    gpus = tuple(gpu for gpu in machine.gpus if gpu.package is None)
    nics = tuple(nic for nic in machine.nics or () if nic.package is None and machine.measured)
    owners: dict[int, list[int]] = {}
    for placed in local_ranks:
        for core in placed.cores:
            owners.setdefault(core.logical_index, []).append(placed.local_rank)
    return MachineBoxes(tuple(packages), gpus, nics, local_ranks, owners)


def sign(core: Core, owners: Mapping[int, list[int]]) -> str:
    """Return the character that stands for a core."""
    if not core.usable:
        return "x"
    ranks = owners.get(core.logical_index, [])
    if not ranks:
        return "."
    if len(ranks) > 1:
        return "*"
    return SIGNS[ranks[0]] if ranks[0] < len(SIGNS) else "+"


def gpu_label(gpu: GPU, local_ranks: Sequence[LocalRankPlacement], arrow: str = "→") -> str:
    """Return the text for a GPU: its number, and the local ranks that use it."""
    users = ",".join(str(placed.local_rank) for placed in local_ranks if placed.gpu == gpu)
    return f"GPU {gpu.number} {arrow} {users}" if users else f"GPU {gpu.number}"


def nic_label(nic: NIC) -> str:
    """Return the text for a NIC: its name, and that of its RDMA device where it differs."""
    return f"NIC {nic.name}" if nic.rdma in (None, nic.name) else f"NIC {nic.name} ({nic.rdma})"
