"""Findings: causes of slowness, with the ranks or the host that they concern."""

from dataclasses import dataclass
from enum import Enum


class SlownessCause(Enum):
    """What slows ranks down."""

    THROTTLED = "throttled"
    """The CPU quota of a cgroup is used up."""
    SWAPPING = "swapping"
    """Memory is read back from swap space."""
    STORAGE = "storage"
    """Ranks wait for storage, or for the data of a pipe."""
    NEIGHBOUR = "neighbour"
    """Processes outside the job use the ranks' CPUs."""
    OVERLOAD = "overload"
    """The ranks have more busy threads than CPUs."""
    LEAK = "leak"
    """Memory grows, and will soon be used up."""
    SLOW_NIC = "slow-nic"
    """A network interface is slower than those of other hosts, or loses packets."""
    GPU_THROTTLED = "gpu-throttled"
    """Heat, the power supply or another reason of the hardware lowers the clock of a GPU."""
    GPU_IDLE = "gpu-idle"
    """The GPU of a rank is idle while those of others compute."""
    GPU_STARVED = "gpu-starved"
    """All GPUs are mostly idle while the ranks use CPUs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of slowness."""

    cause: SlownessCause
    ranks: str
    """The ranks, such as 3 or 0-7; empty where a host is meant."""
    host: str
    severity: float
    """From 0 to 1: about the share of time that is lost."""
    details: str
    """What the samples show."""

    @property
    def text(self) -> str:
        """The finding in words."""
        noun = "rank" if self.ranks.isdigit() else "ranks"
        return f"{noun} {self.ranks} on {self.host}: {self.details}" if self.ranks else f"{self.host}: {self.details}"
