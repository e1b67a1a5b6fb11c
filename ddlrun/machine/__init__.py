"""Machine: what one host is made of, as the placement needs it."""

from typing import NamedTuple

# A note of machines on which hwloc finds no cores; their hardware threads count as cores.
THREADS_ALONE = "it has no cores of its own but hardware threads: Open MPI 5 refuses rank files there"


class PU(NamedTuple):
    """A processing unit (hardware thread), by the number that the operating system gives it."""

    os_index: int


class Core(NamedTuple):
    """A core. Indexes are logical (hwloc's order), which is what a rank file means.

    `index_in_package` counts inside the package, `logical_index` over the host. A core that is not
    `usable` is there and counted, but this process may not run on it (taskset, srun).
    """

    logical_index: int
    package: int
    index_in_package: int
    numa_node: int | None
    pus: tuple[PU, ...]
    usable: bool = True


class GPU(NamedTuple):
    """A GPU that may be used. `package` and `numa_node` say what it hangs on, None: not known.

    `number` counts the machine's GPUs by PCI address (as CUDA_DEVICE_ORDER=PCI_BUS_ID does), `vendor` is
    nvidia, amd or intel, `nics` are the names of the nearest NICs.
    """

    number: int
    package: int | None = None
    numa_node: int | None = None
    pci_address: str | None = None
    vendor: str | None = None
    nics: tuple[str, ...] = ()


class NIC(NamedTuple):
    """A network card that hangs on a bus: its interface's name, and its RDMA device's where it has one."""

    name: str
    package: int | None = None
    numa_node: int | None = None
    pci_address: str | None = None
    rdma: str | None = None


class Machine(NamedTuple):
    """One host's cores in logical order, its GPUs and NICs, and who said so.

    `nics` is None where nobody looked. `measured` is False for a description that a person wrote: its
    logical indexes count, its OS indexes are invented. `numa_nodes` are OS indexes, those without
    CPUs (the memory of GPUs, HBM, CXL) too. `packaged` is False where the machine has no packages of
    its own (some virtual ones): its cores then count as those of package 0, and rank files count
    them over the host. `memory` is the size in GiB as it is sold, None: not known. `notes` say what was
    found but is not offered, or what the tools disagree about.
    """

    cores: tuple[Core, ...]
    gpus: tuple[GPU, ...]
    nics: tuple[NIC, ...] | None
    source: str
    measured: bool
    numa_nodes: tuple[int, ...] = ()
    packaged: bool = True
    memory: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def rdma_devices(self) -> tuple[str, ...] | None:
        """The names of the RDMA devices, None where nobody looked."""
        return None if self.nics is None else tuple(sorted(nic.rdma for nic in self.nics if nic.rdma))

    @property
    def packages(self) -> tuple[tuple[Core, ...], ...]:
        """The cores of each package, by the package's logical index."""
        return tuple(
            tuple(core for core in self.cores if core.package == package)
            for package in sorted({core.package for core in self.cores})
        )

    @property
    def numa_domains(self) -> int:
        """How many NUMA nodes have cores that are usable (at least 1)."""
        return len({core.numa_node for core in self.cores if core.usable}) or 1

    @property
    def uniform(self) -> bool:
        """Whether all packages have the same number of cores."""
        return len({len(package) for package in self.packages}) <= 1

    def __str__(self) -> str:
        """Say it shortly: `2 packages x 10 cores, SMT8, 4 GPUs`."""
        sizes = [len(package) for package in self.packages]
        unit = f"{len(sizes)} package{'s' * (len(sizes) > 1)}"
        cores = (
            f"{unit} x {sizes[0]} core{'s' * (sizes[0] > 1)}"
            if self.uniform
            else f"{unit} of {'+'.join(map(str, sizes))} cores"
        )
        smt = max(len(core.pus) for core in self.cores)
        gpus = f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)}" if self.gpus else ""
        return ", ".join(filter(None, [cores, f"SMT{smt}" if smt > 1 else "", gpus]))
