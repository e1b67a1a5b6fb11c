"""Topologies such as 4x2x3, or 4+2 on unequal hosts: parse, render, and convert between ranks and coordinates."""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate, groupby
from typing import NamedTuple

from ddlrun.errors import InputError

AXES = ("X", "Y", "Z", "A")
AXIS_MEANINGS = ("ranks per host", "hosts per rack", "racks", "aisles")
# MPI counts ranks in a C int.
MOST_RANKS = 2**31 - 1
# Hosts of a job that are unequal, at most; a host list of more would not fit into any environment variable.
MOST_HOSTS = 1_000_000


class RankOrder(Enum):
    """Order of the ranks over the hosts: see `Topology.ranks_of`."""

    DDL = "ddl"
    HOST = "host"


class _Dims(NamedTuple):
    dims: tuple[int, ...]


class Topology(_Dims):
    """Shape of a job: X ranks per host, Y hosts per rack, Z racks per aisle, A aisles.

    `dims` always has X, Y and Z; it has A only where A is more than 1.
    Raises InputError where there are no dimensions, more than four, or one below 1.
    """

    __slots__ = ()

    def __new__(cls, dims: tuple[int, ...]) -> "Topology":  # noqa: D102, PYI034 - Self is not in Python 3.10
        problems = _problems(dims)
        if problems:
            raise InputError(*problems)
        full = (*dims, 1, 1, 1)[:3] + dims[3:]
        return super().__new__(cls, full[:3] if full[3:] == (1,) else full)

    def __str__(self) -> str:
        return "x".join(map(str, self.dims))

    @property
    def ranks_per_host(self) -> int:
        """Return X: ranks per host."""
        return self.dims[0]

    @property
    def hosts(self) -> int:
        """Return Y*Z*A: hosts of the job."""
        return math.prod(self.dims[1:])

    @property
    def size(self) -> int:
        """Return X*Y*Z*A: ranks of the job."""
        return math.prod(self.dims)

    @property
    def largest(self) -> int:
        """Return the most ranks that a host has."""
        return self.dims[0]

    def local_size(self, _host_index: int) -> int:
        """Return the number of ranks of a host."""
        return self.dims[0]

    def host_coords(self, host_index: int) -> tuple[int, ...]:
        """Return (y, z[, a]) of the host at `host_index` = (a*Z + z)*Y + y: hosts of one rack are adjacent."""
        coords = []
        for size in self.dims[1:]:
            host_index, coord = divmod(host_index, size)
            coords.append(coord)
        return tuple(coords)

    def rank(self, host_index: int, local_rank: int, order: RankOrder) -> int:
        """Return the rank of `local_rank` on the host at `host_index`."""
        return self.ranks_of(host_index, order)[local_rank]

    def ranks_of(self, host_index: int, order: RankOrder) -> range:
        """Return the ranks of a host, by local rank.

        DDL: ((x*Y + y)*Z + z)*A + a, the order of rank_gen.py, in which X varies slowest. HOST: host_index*X + x.
        """
        if order is RankOrder.HOST:
            first = host_index * self.ranks_per_host
            return range(first, first + self.ranks_per_host)
        offset = 0
        for size in self.dims[1:]:
            host_index, coord = divmod(host_index, size)
            offset = offset * size + coord
        return range(offset, self.size, self.hosts)

    def host_index(self, rank: int, order: RankOrder) -> int:
        """Return the index of the host on which a rank runs: the inverse of `rank`."""
        if order is RankOrder.HOST:
            return rank // self.ranks_per_host
        offset, index = rank % self.hosts, 0
        for size in reversed(self.dims[1:]):
            offset, at = divmod(offset, size)
            index = index * size + at
        return index


class _LocalSizes(NamedTuple):
    local_sizes: tuple[int, ...]
    first_ranks: tuple[int, ...]


class UnequalTopology(_LocalSizes):
    """Shape of a job whose hosts have different numbers of ranks, which are contiguous on each host.

    It has no dimensions. As text it is a sum: 4+2 for hosts with 4 and 2 ranks, 3*2+1 for three hosts with 2 and one
    with 1. `first_ranks` are the first rank of each host. Raises InputError where the hosts are equal, a host has no
    rank, or the ranks are too many.
    """

    __slots__ = ()

    def __new__(cls, local_sizes: Sequence[int]) -> "UnequalTopology":  # noqa: D102, PYI034 - as above
        if len(set(local_sizes)) < 2 or min(local_sizes) < 1 or sum(local_sizes) > MOST_RANKS:
            raise InputError(f"{_render_sum(local_sizes)}: these are not the numbers of ranks of unequal hosts")
        return super().__new__(cls, tuple(local_sizes), (0, *accumulate(local_sizes[:-1])))

    def __str__(self) -> str:
        return _render_sum(self.local_sizes)

    @property
    def hosts(self) -> int:
        """Return the hosts of the job."""
        return len(self.local_sizes)

    @property
    def size(self) -> int:
        """Return the ranks of the job."""
        return self.first_ranks[-1] + self.local_sizes[-1]

    @property
    def largest(self) -> int:
        """Return the most ranks that a host has."""
        return max(self.local_sizes)

    def local_size(self, host_index: int) -> int:
        """Return the number of ranks of a host."""
        return self.local_sizes[host_index]

    def host_coords(self, host_index: int) -> tuple[int, ...]:
        """Return (y, z) of a host, as in one rack."""
        return host_index, 0

    def rank(self, host_index: int, local_rank: int, order: RankOrder) -> int:
        """Return the rank of `local_rank` on the host at `host_index`."""
        return self.ranks_of(host_index, order)[local_rank]

    def ranks_of(self, host_index: int, _order: RankOrder) -> range:
        """Return the ranks of a host, by local rank; the order of ranks is always HOST."""
        first = self.first_ranks[host_index]
        return range(first, first + self.local_sizes[host_index])

    def host_index(self, rank: int, _order: RankOrder) -> int:
        """Return the index of the host on which a rank runs: the inverse of `rank`."""
        return bisect_right(self.first_ranks, rank) - 1


JobTopology = Topology | UnequalTopology


def ddl_topology(topology: JobTopology) -> Topology:
    """Return the dimensions of ddlrun.ddl.

    Unequal hosts are divided into equal parts of X ranks, as large as possible, and Y counts the parts in the order of
    the hosts. So X never leaves a host. Where X is 1, there is one ring over all ranks.

    >>> [str(ddl_topology(UnequalTopology(sizes))) for sizes in ((4, 2), (3, 2))]
    ['2x3x1', '1x5x1']
    """
    if isinstance(topology, Topology):
        return topology
    part = math.gcd(*topology.local_sizes)
    return Topology((part, topology.size // part))


def _render_sum(local_sizes: Sequence[int]) -> str:
    runs = ((size, len(list(run))) for size, run in groupby(local_sizes))
    return "+".join(f"{hosts}*{size}" if hosts > 1 else str(size) for size, hosts in runs)


def parse_job_topology(text: str, where: str = "topology") -> JobTopology:
    """Parse the text of a topology of either kind. Raises InputError.

    >>> parse_job_topology("3*2+1").size, parse_job_topology("4x2").size
    (7, 8)
    """
    if "+" not in text:
        return parse_topology(text, where)
    runs = [re.fullmatch(r"(?:([0-9]{1,9})\*)?([0-9]{1,9})", part) for part in text.split("+")]
    sizes = [int(run[2]) for run in runs if run for _ in range(min(int(run[1] or 1), MOST_HOSTS))]
    if None in runs or len(sizes) > MOST_HOSTS:
        raise InputError(f"{where} {text!r}: write the ranks of the hosts as a sum, such as 4+2 or 3*2+1")
    return UnequalTopology(sizes)


def parse_topology(text: str, where: str = "topology") -> Topology:
    """Parse one to four positive integers separated by x, such as "4x2x3"; missing dimensions are 1.

    Raises InputError that names each wrong dimension and its meaning.

    >>> parse_topology("4x2x3")
    Topology(dims=(4, 2, 3))
    >>> str(parse_topology("4"))
    '4x1x1'
    """
    words = text.strip().lower().split("x")
    malformed = [(index, word) for index, word in enumerate(words) if not re.fullmatch(r"[0-9]{1,9}", word)]
    if malformed:
        raise InputError(*(_describe_malformed(text, where, index, word) for index, word in malformed))
    problems = _problems([int(word) for word in words])
    if problems:
        raise InputError(*(f"{where} {text!r}: {problem}" for problem in problems))
    return Topology(tuple(map(int, words)))


def _describe_malformed(text: str, where: str, index: int, word: str) -> str:
    column = sum(len(part) + 1 for part in text.strip().lower().split("x")[:index]) + 1
    problem = f"{word!r} is not a positive integer" if word else "a number is missing"
    if re.fullmatch(r"[0-9*]+([+][0-9*]+)+", word):
        return (
            f"{where} {text!r}: hosts with different numbers of ranks are given by their slots: "
            "ddlrun launch -H a:4,b:2, or ddlrun show rankfile -H a:4,b:2"
        )
    return f"{where} {text!r}, column {column}: {problem}; write XxYxZ, for example 4x2x3 = {describe((4, 2, 3))}"


def _problems(dims: Sequence[int]) -> list[str]:
    if not 1 <= len(dims) <= len(AXES):
        return [f"{len(dims)} dimensions; write one to four: X x Y x Z x A"]
    small = [
        f"{axis} ({meaning}) is {size}; it must be at least 1"
        for axis, meaning, size in zip(AXES, AXIS_MEANINGS, dims, strict=False)
        if size < 1
    ]
    size = math.prod(dims)
    if not small and size > MOST_RANKS:
        return [f"{size} ranks; MPI allows at most {MOST_RANKS}"]
    return small


def describe(dims: Sequence[int], first: int = 0) -> str:
    """Describe dimensions in words; `first` is the index of their first axis.

    >>> describe((4, 2, 3)), describe((4, 1, 1))
    ('4 ranks per host x 2 hosts per rack x 3 racks', '4 ranks per host x 1 host per rack x 1 rack')
    """
    axes = zip(dims, AXIS_MEANINGS[first:], strict=False)
    return " x ".join(f"{size} {_singular(meaning) if size == 1 else meaning}" for size, meaning in axes)


def _singular(meaning: str) -> str:
    return re.sub(r"s( |$)", r"\1", meaning, count=1)
