"""The user's options for the placement of ranks."""

from typing import NamedTuple

BINDINGS = ("core", "numa", "package", "none")
CORE_KINDS = ("all", "fast")
MEMBINDS = ("local", "gpu", "interleave")


class PlacementPolicy(NamedTuple):
    """The user's options for the placement of ranks.

    reserve_cores: cores per host that are left to the system.
    cores_per_rank: the exact number; None: equal shares.
    bind: the cores that a rank may run on: its own, or all of their NUMA nodes or packages, or (none) of the host.
    packing: "spread" over packages, or "pack" on as few as possible; None: spread, but with GPUs in their order.
    threads_per_core: PUs per core that a rank uses; None: all, with one OpenMP thread.
    gpu_order: GPU numbers in the order of local ranks.
    strict: more ranks than cores are refused; otherwise they run unbound.
    share_gpus: more ranks than GPUs share GPUs in turn.
    core_kinds: the cores of a hybrid machine that ranks use: of "all" kinds, each in equal parts, or the "fast" ones.
    membind: the NUMA nodes of a rank's memory: those of its cores ("local", or in turn, "interleave"), or its GPU's
        ("gpu"); None: as the kernel decides.
    """

    reserve_cores: int = 0
    cores_per_rank: int | None = None
    bind: str = "core"
    packing: str | None = None
    threads_per_core: int | None = None
    gpu_order: tuple[int, ...] | None = None
    strict: bool = False
    share_gpus: bool = False
    core_kinds: str = "all"
    membind: str | None = None

    def unbound(self) -> "PlacementPolicy":
        """Return the policy for ranks that cannot have cores of their own."""
        return self._replace(bind="none" if self.bind == "core" else self.bind)


DEFAULT_POLICY = PlacementPolicy()
