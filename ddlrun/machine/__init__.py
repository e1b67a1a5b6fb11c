"""One host's machine: its cores, GPUs and NICs, as the placement needs them."""

from enum import Enum
from typing import NamedTuple

from ddlrun.wording import counted


class MachineNoteCode(Enum):
    """The texts of notes on machines, with {fields} for their values."""

    CORES_ARE_THREADS = (
        "hwloc finds no cores there, or at several depths, and counts hardware threads: Open MPI 5 refuses rank files"
    )
    CORES_UNCOUNTED = "how mpirun counts the cores there is not known, so that no rank file can be written"
    CORES_DIFFER = "lstopo and /sys differ in cores; hwloc counts as mpirun does, so its cores are used"
    CORES_OF_OPEN_MPI_4 = (
        "the hwloc inside Open MPI 4.1 numbers the cores here in another way; launch allows for it, but a rank file "
        "is for other builds of Open MPI"
    )
    PACKAGES_UNCERTAIN = (
        "a cpuset hides a package before others: mpirun counts it if its hwloc finds PCI devices there, so that rank "
        "files count cores over the host"
    )
    MEMORY_LIMITED = "a cgroup allows {allowed} of {installed} GiB of memory"
    GPUS_CLOSED = "{closed} of {gpus} GPUs not counted: no driver, or not allowed by the cgroup"
    GPUS_RESTRICTED = "{variable}={value} leaves {left} of {gpus} GPUs"
    GPUS_PARTITIONED = "{variable}={value}: {left} MIG, one per rank, because CUDA shows a process only one"
    GPUS_UNLOCATED = (
        "{variable}={value}: {left} for ranks; the variable is passed on unchanged, because their location is not known"
    )
    GPUS_ALLOCATED = "{allocated} of {gpus} GPUs are the job's"
    GPUS_DIFFER = "nvidia-smi lists {listed} GPUs, {usable} may be used"
    TABLE_UNCHECKED = "lscpu -p prints no total: a list that was cut off has fewer cores; save lscpu -J beside it"
    NODES_UNCHECKED = "lscpu prints no NUMA nodes: the kernel has none, or the text was cut off; save lscpu -J instead"
    DISTANCES_UNREAD = "numactl -H is cut off or not as expected; the distances of its NUMA nodes are not used"
    TEXT_UNCHECKED = "the last line of {file} has no line break: the file may have been cut off"
    GPUS_UNCHECKED = "nvidia-smi --query-gpu prints no total: a list that was cut off has fewer GPUs; save topo -m too"


# The codes of notes on variables that choose GPUs.
CHOSEN_NOTES = frozenset(
    {MachineNoteCode.GPUS_RESTRICTED, MachineNoteCode.GPUS_PARTITIONED, MachineNoteCode.GPUS_UNLOCATED}
)
# The codes that explain why GPUs of the machine are missing.
GPU_NOTES = CHOSEN_NOTES | {
    MachineNoteCode.GPUS_CLOSED,
    MachineNoteCode.GPUS_ALLOCATED,
    MachineNoteCode.GPUS_DIFFER,
}
# The codes of notes on outputs that could be cut off without a sign of it.
UNCHECKED_NOTES = frozenset(
    {
        MachineNoteCode.TABLE_UNCHECKED,
        MachineNoteCode.NODES_UNCHECKED,
        MachineNoteCode.DISTANCES_UNREAD,
        MachineNoteCode.TEXT_UNCHECKED,
        MachineNoteCode.GPUS_UNCHECKED,
    }
)


class MachineNote(NamedTuple):
    """A note on a machine: what exists but is not offered, or what its tools disagree about."""

    code: MachineNoteCode
    values: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return self.code.value.format_map(dict(self.values))


def machine_note(code: MachineNoteCode, **values: object) -> MachineNote:
    """Return a note with the values of its text's fields."""
    return MachineNote(code, tuple(values.items()))


class PU(NamedTuple):
    """A processing unit (hardware thread) and its OS index."""

    os_index: int


class Core(NamedTuple):
    """A core. Its indexes are logical (hwloc's order), which rank files mean.

    `package` is the logical index of its package, `index_in_package` counts inside the package,
    `logical_index` over the host. Cores that a cpuset hides are not counted. A core that is not `usable` exists
    and is counted, but this process may not run on it (taskset, srun).
    """

    logical_index: int
    package: int
    index_in_package: int
    numa_node: int | None
    pus: tuple[PU, ...]
    usable: bool = True
    l3: int | None = None
    """The smallest OS index in its L3 domain; None: unknown."""
    kind: int = 0
    """Its kind on a hybrid machine, counted from the slowest, 0."""

    @property
    def numbers(self) -> tuple[int, int, int, int | None, tuple[PU, ...]]:
        """Its indexes, its NUMA node and its PUs."""
        return self.logical_index, self.package, self.index_in_package, self.numa_node, self.pus


class GPU(NamedTuple):
    """A GPU that may be used, and the `package` and `numa_node` that it is attached to (None: unknown).

    `number` counts the machine's GPUs by PCI address (as CUDA_DEVICE_ORDER=PCI_BUS_ID does), `vendor` is
    nvidia, amd or intel, `nics` are the names of the nearest NICs. `l3` is the L3 domain that it is attached to, if
    that is one alone.
    """

    number: int
    package: int | None = None
    numa_node: int | None = None
    pci_address: str | None = None
    vendor: str | None = None
    nics: tuple[str, ...] = ()
    l3: int | None = None


class NIC(NamedTuple):
    """A network card: the name of its interface, and of its RDMA device if it has one."""

    name: str
    package: int | None = None
    numa_node: int | None = None
    pci_address: str | None = None
    rdma: str | None = None


class Machine(NamedTuple):
    """One host's cores in logical order, its GPUs and NICs, and the `source` of the description.

    `nics` is None if they were not probed. `measured` is False for a description that a person wrote: its
    logical indexes are valid, its OS indexes are invented. `numa_nodes` are OS indexes, including nodes
    without CPUs (the memory of GPUs, HBM, CXL). `empty_packages` are the logical indexes of packages whose
    cores a cpuset hides, but not their memory: hwloc counts them, so the other packages' indexes have a gap.
    `hwloc_2_0_cores` are the cores as the hwloc 2.0 inside Open MPI 4.1 numbers them, empty where it does not differ.
    `packaged` is False if the machine reports no packages (some virtual ones: its cores then belong to package 0), or
    hwloc finds them at several depths: rank files then count cores over the host. `memory` is
    the nominal size in GiB, None if unknown.
    """

    cores: tuple[Core, ...]
    gpus: tuple[GPU, ...]
    nics: tuple[NIC, ...] | None
    source: str
    measured: bool
    numa_nodes: tuple[int, ...] = ()
    numa_distances: tuple[tuple[int, ...], ...] = ()
    """A row per NUMA node, in the order of `numa_nodes`; none: unknown."""
    packaged: bool = True
    memory: int | None = None
    notes: tuple[MachineNote, ...] = ()
    empty_packages: tuple[int, ...] = ()
    hwloc_2_0_cores: tuple[Core, ...] = ()
    in_use: frozenset[int | str] = frozenset()
    """The OS indexes of CPUs and the PCI addresses of GPUs that other runs on the host use."""

    @property
    def rdma_devices(self) -> tuple[str, ...] | None:
        """The names of the RDMA devices, None if they were not probed."""
        return None if self.nics is None else tuple(sorted(nic.rdma for nic in self.nics if nic.rdma))

    @property
    def packages(self) -> tuple[tuple[Core, ...], ...]:
        """The cores of each package, by the package's logical index; those of `empty_packages` have none."""
        members: dict[int, list[Core]] = {package: [] for package in self.empty_packages}
        for core in self.cores:
            members.setdefault(core.package, []).append(core)
        return tuple(tuple(members[package]) for package in sorted(members))

    @property
    def numa_domains(self) -> int:
        """The number of NUMA nodes with usable cores (at least 1)."""
        return len({core.numa_node for core in self.cores if core.usable}) or 1

    @property
    def uniform(self) -> bool:
        """Whether all packages have the same number of cores; `empty_packages` have none."""
        return len({len(package) for package in self.packages}) <= 1

    @property
    def cores_are_threads(self) -> bool:
        """Whether hwloc finds no cores, so that hardware threads count as cores."""
        return any(note.code is MachineNoteCode.CORES_ARE_THREADS for note in self.notes)

    @property
    def cores_uncounted(self) -> bool:
        """Whether it is not known how mpirun counts the cores."""
        return any(note.code is MachineNoteCode.CORES_UNCOUNTED for note in self.notes)

    @property
    def packages_uncertain(self) -> bool:
        """Whether builds of hwloc differ in the numbers of packages."""
        return any(note.code is MachineNoteCode.PACKAGES_UNCERTAIN for note in self.notes)

    def numa_distance(self, node: int | None, other: int | None) -> int | None:
        """Return the distance of two NUMA nodes, None if it is unknown."""
        if not self.numa_distances or node not in self.numa_nodes or other not in self.numa_nodes:
            return None
        return self.numa_distances[self.numa_nodes.index(node)][self.numa_nodes.index(other)]

    def __str__(self) -> str:
        """Summarise the machine: `2 packages x 10 cores, SMT8, 4 GPUs`."""
        sizes = [len(package) for package in self.packages if package]
        packages = counted(len(sizes), "package")
        if len(set(sizes)) == 1:
            parts = [f"{packages} x {counted(sizes[0], 'core')}"]
        else:
            parts = [f"{packages} of {'+'.join(map(str, sizes))} cores"]
        smt = max(len(core.pus) for core in self.cores)
        if smt > 1:
            parts.append(f"SMT{smt}")
        if self.gpus:
            parts.append(counted(len(self.gpus), "GPU"))
        return ", ".join(parts)
