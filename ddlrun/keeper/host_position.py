"""The host of each rank, from the job's topology: XxYxZ, or on unequal hosts a sum such as 4+2 or 3*2+1."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class RankPositions:
    """The hosts of a job's ranks, by DDLRUN_TOPOLOGY and DDLRUN_RANK_ORDER.

    >>> positions = RankPositions({"DDLRUN_TOPOLOGY": "3*2+1", "DDLRUN_RANK_ORDER": "host"})
    >>> positions.host_sizes, positions.find(6)
    ([2, 2, 2, 1], (3, 0))
    >>> RankPositions({"DDLRUN_TOPOLOGY": "2x4", "DDLRUN_RANK_ORDER": "ddl"}).find(2)
    (2, 0)
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Parse the variables. Ranks are contiguous on unequal hosts."""
        terms = [term.replace("*", "x").split("x") for term in environ["DDLRUN_TOPOLOGY"].split("+")]
        numbers = [[int(number) for number in term] for term in terms]
        self._axes: list[int] | None = None
        """The sizes of Y, Z and A in ddl order."""
        self._runs: list[tuple[int, int]] = [(run[0] if len(run) > 1 else 1, run[-1]) for run in numbers]
        """Numbers of adjacent hosts, each with the ranks of each of them."""
        if len(numbers) == 1:
            ranks, *axes = numbers[0]
            hosts = 1
            for axis_size in axes:
                hosts *= axis_size
            self._runs = [(hosts, ranks)]
            self._axes = axes if environ["DDLRUN_RANK_ORDER"] == "ddl" else None

    @property
    def host_sizes(self) -> list[int]:
        """Return the number of ranks of each host."""
        return [ranks for hosts, ranks in self._runs for _ in range(hosts)]

    def all(self) -> list[tuple[int, int]]:
        """Return the host and the local rank of every rank."""
        if self._axes is None:
            return [(host, local) for host, ranks in enumerate(self.host_sizes) for local in range(ranks)]
        return [self.find(rank) for rank in range(sum(self.host_sizes))]

    def find(self, rank: int) -> tuple[int, int]:
        """Return the index of a rank's host, and its local rank there."""
        if self._axes is not None:
            local_rank, number = divmod(rank, self._runs[0][0])
            return _ddl_host(number, self._axes), local_rank
        first_host = 0
        for hosts, ranks in self._runs:
            host, local_rank = divmod(rank, ranks)
            if host < hosts:
                return first_host + host, local_rank
            rank -= hosts * ranks
            first_host += hosts
        raise ValueError("the topology has no such rank")


def _ddl_host(number: int, axes: list[int]) -> int:
    """Convert (y*Z + z)*A + a, a rank's remainder in ddl order, to the host index (a*Z + z)*Y + y."""
    coordinates = []
    for axis_size in reversed(axes):
        number, coordinate = divmod(number, axis_size)
        coordinates.append((axis_size, coordinate))
    host = 0
    for axis_size, coordinate in coordinates:
        host = host * axis_size + coordinate
    return host
