"""Records of machines, placements and plans: the types of their JSON objects, the source of their schemas."""

from typing import Annotated, Any, Literal, TypedDict

from ddlrun.machine import GPU, NIC
from ddlrun.topology import RankOrder


class CoreRecord(TypedDict):
    """A core of a machine."""

    core: int
    """Logical index of the core on its host, as hwloc counts."""
    numa_node: int | None
    """OS index of its NUMA node."""
    pus: list[int]
    """OS indexes of its hardware threads."""
    usable: bool
    """Whether the job may run on it."""
    l3: int | None
    """The smallest OS index in its L3 domain; null if unknown."""
    kind: int
    """Its kind on a hybrid machine, counted from the slowest, 0."""


class MachineRecord(TypedDict):
    """The hardware of a host."""

    summary: str
    source: str
    """The preset, the file or the tools that describe the machine."""
    measured: bool
    """Whether the host was probed. If not, OS indexes are invented."""
    memory_gib: int | None
    """Nominal memory; null if unknown."""
    numa_nodes: list[int]
    """OS indexes of the NUMA nodes, including those without CPUs."""
    numa_distances: list[list[int]]
    """A row per NUMA node; empty if unknown."""
    notes: list[str]
    packages: list[list[CoreRecord]]
    """The cores of each package."""
    gpus: list[Annotated[dict[str, Any], GPU]]
    nics: list[Annotated[dict[str, Any], NIC]] | None
    """Null if the network cards were not probed."""


class MachineGroupRecord(MachineRecord):
    """Hosts with equal hardware."""

    hosts: list[str]


class PlannedHostRecord(TypedDict):
    """A host of the job."""

    name: str
    slots: int | None
    """Number of ranks that the host takes; null if not given."""
    rack: str | None


class PlannedRankRecord(TypedDict):
    """The place of a rank."""

    rank: int
    host: str
    local_rank: int
    coords: list[int]
    """Coordinates of the rank in the topology: X, Y, Z, and A if there are aisles; as one rack on unequal hosts."""
    packages: list[int]
    cores: list[int]
    """Logical indexes of its cores."""
    gpu: int | None
    """Number of its GPU, in the order of PCI addresses."""
    gpu_address: str | None
    """PCI address of its GPU."""
    nics: list[str]
    """Names of the NICs nearest to its GPU or cores."""
    threads: int
    """Number of OpenMP threads."""
    memory_nodes: list[int]
    """NUMA nodes to which its memory is bound; empty: the kernel decides."""


class PlacementRecord(TypedDict):
    """The place of every rank."""

    topology: str
    """XxYxZ: ranks per host, hosts per rack, racks; XxYxZxA with aisles; 4+2 for hosts with 4 and 2 ranks."""
    rank_order: Annotated[str, RankOrder]
    """host: consecutive ranks on each host; ddl: round robin over hosts."""
    hosts: list[PlannedHostRecord]
    hosts_source: str
    machines: list[MachineGroupRecord]
    ranks: list[PlannedRankRecord]


class ShownPlacement(PlacementRecord):
    """The output of `ddlrun show placement --json`: the place of every rank."""

    schema: Literal["urn:ddlrun:placement:1"]


class ReasonsRecord(TypedDict):
    """The reasons for the choices of a plan."""

    topology: str
    rank_order: str
    transport: str
    network: str
    launcher: str


class ManagerRecord(TypedDict):
    """The process manager of a launch, and the reason for it."""

    path: str
    version: str
    reason: str


class PlanRecord(PlacementRecord):
    """A plan: everything that a launch needs, without secrets."""

    schema: Literal["urn:ddlrun:plan:1"]
    version: str
    """The version of ddlrun."""
    reasons: ReasonsRecord
    notes: list[str]
    mpirun: ManagerRecord
    command: list[str]
    """The words of the process manager's command."""
    variables: dict[str, str]
    """Variables that ddlrun sets for the ranks; secret values are <redacted>."""
    removed: list[str]
    """Variables that are removed from the environment of the process manager."""
    exported: list[str]
    """Names of the variables that the ranks get."""
    run_dir: str
    """The run folder."""
    run_id: str


class WrittenPlan(PlanRecord, total=False):
    """The plan of a run: plan.json in its folder, and the output of `ddlrun launch --dry-run --json`."""

    written: float
    """Time at which plan.json was written, in seconds since 1970; absent from the output of a dry run."""
