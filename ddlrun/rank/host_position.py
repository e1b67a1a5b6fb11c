"""The host of a rank, from the job's topology: XxYxZ, or on unequal hosts a sum such as 4+2 or 3*2+1."""

from __future__ import annotations


def host_sizes(size: int, topology: str) -> list[int]:
    """Return the number of ranks of each host.

    >>> host_sizes(8, "2x4"), host_sizes(7, "3*2+1")
    ([2, 2, 2, 2], [2, 2, 2, 1])
    """
    if "+" not in topology:
        per_host = int(topology.partition("x")[0])
        return [per_host] * (size // per_host)
    runs = [part.rpartition("*") for part in topology.split("+")]
    return [int(ranks) for hosts, _, ranks in runs for _ in range(int(hosts or 1))]


def host_and_local(rank: int, size: int, topology: str, order: str) -> tuple[int, int]:
    """Return the index of a rank's host, and its local rank there.

    >>> host_and_local(2, 8, "2x4", "ddl"), host_and_local(2, 8, "2x4", "host"), host_and_local(5, 6, "4+2", "host")
    ((2, 0), (1, 0), (1, 1))
    """
    if "+" in topology:
        return _host_of_sum(rank, topology)
    per_host = int(topology.partition("x")[0])
    if order == "host":
        return rank // per_host, rank % per_host
    hosts = size // per_host
    return _ddl_host(rank % hosts, topology), rank // hosts


def all_places(size: int, topology: str, order: str) -> list[tuple[int, int]]:
    """Return the host and the local rank of every rank."""
    if "+" in topology:
        return [(host, local) for host, ranks in enumerate(host_sizes(size, topology)) for local in range(ranks)]
    return [host_and_local(rank, size, topology, order) for rank in range(size)]


def _host_of_sum(rank: int, topology: str) -> tuple[int, int]:
    """Return the index of a rank's host and its local rank, where ranks are contiguous on unequal hosts."""
    first_host = 0
    for part in topology.split("+"):
        hosts, _, ranks = part.rpartition("*")
        count = int(hosts or 1)
        host, local_rank = divmod(rank, int(ranks))
        if host < count:
            return first_host + host, local_rank
        rank -= count * int(ranks)
        first_host += count
    raise ValueError(f"topology {topology} has no such rank")


def _ddl_host(number: int, topology: str) -> int:
    """Convert (y*Z + z)*A + a, a rank's remainder in ddl order, to the host index (a*Z + z)*Y + y."""
    sizes = [int(size) for size in topology.split("x")][1:]
    coordinates = []
    for axis_size in reversed(sizes):
        number, coordinate = divmod(number, axis_size)
        coordinates.append((axis_size, coordinate))
    host = 0
    for axis_size, coordinate in coordinates:
        host = host * axis_size + coordinate
    return host
