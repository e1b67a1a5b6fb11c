"""The GPU of each rank of a host: the visible one at the index of its local rank."""

from __future__ import annotations

from ddlrun.keeper.binding import parse_binding
from ddlrun.keeper.host_position import RankPositions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UUID = "GPU-"
# Linux writes four digits of a PCI domain, nvidia-smi eight.
ADDRESS_LENGTH = len("0000:17:00.0")


class GpuRanks:
    """The ranks of a host, by the names that the plan or the user gave to their GPUs."""

    def __init__(self, environ: Mapping[str, str], rank: int, size: int) -> None:
        """Read the variables of a rank of the host; without a plan there are no ranks."""
        self._ranks: dict[str, list[int]] = {}
        chosen = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        for other, local_rank in _list_ranks(environ, rank, size):
            planned = parse_binding(environ, other, local_rank, size)
            visible = planned.gpus if planned is not None and planned.gpus else chosen
            if visible:
                self._ranks.setdefault(visible[local_rank % len(visible)], []).append(other)

    def __bool__(self) -> bool:
        """Return True if any rank has a GPU."""
        return bool(self._ranks)

    def find(self, index: str, uuid: str, address: str) -> list[int]:
        """Return the ranks of a GPU, by its index, UUID and PCI address as nvidia-smi prints them."""
        address = address[-ADDRESS_LENGTH:].lower()
        return sorted(
            rank
            for name, ranks in self._ranks.items()
            if name in (index, address) or (name.startswith(UUID) and uuid.startswith(name))  # CUDA takes beginnings
            for rank in ranks
        )


def _list_ranks(environ: Mapping[str, str], rank: int, size: int) -> list[tuple[int, int]]:
    """Return the ranks of a rank's host with their local ranks; none if the topology is unknown."""
    if min(rank, size) < 0 or "DDLRUN_TOPOLOGY" not in environ:
        return []
    places = RankPositions(environ).all()
    return [(other, local_rank) for other, (host, local_rank) in enumerate(places) if host == places[rank][0]]
