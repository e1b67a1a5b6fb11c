"""Topologies such as 4x2x3: parse, render, and convert between ranks and coordinates."""

import math
import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ddlrun.errors import InputError

AXES = ("X", "Y", "Z", "A")
AXIS_MEANINGS = ("ranks per host", "hosts per rack", "racks", "aisles")
# MPI counts ranks in a C int.
MOST_RANKS = 2**31 - 1


class RankOrder(Enum):
    """Order of the ranks over the hosts: see `Topology.rank`."""

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
    def accelerators(self) -> int:
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

    def host_coords(self, host_index: int) -> tuple[int, ...]:
        """Return (y, z[, a]) of the host at `host_index` = (a*Z + z)*Y + y: hosts of one rack are adjacent."""
        coords = []
        for size in self.dims[1:]:
            host_index, coord = divmod(host_index, size)
            coords.append(coord)
        return tuple(coords)

    def rank(self, host_index: int, local_rank: int, order: RankOrder) -> int:
        """Return the rank of `local_rank` on the host at `host_index`.

        DDL: ((x*Y + y)*Z + z)*A + a, the order of rank_gen.py, in which X varies slowest. HOST: host_index*X + x.
        """
        stride, offset = self.rank_line(host_index, order)
        return local_rank * stride + offset

    def rank_line(self, host_index: int, order: RankOrder) -> tuple[int, int]:
        """Return (stride, offset) of a host: its local rank x has the rank x*stride + offset."""
        if order is RankOrder.HOST:
            return 1, host_index * self.accelerators
        offset = 0
        for size in self.dims[1:]:
            host_index, coord = divmod(host_index, size)
            offset = offset * size + coord
        return self.hosts, offset

    def host_index(self, rank: int, order: RankOrder) -> int:
        """Return the index of the host on which a rank runs: the inverse of `rank`."""
        if order is RankOrder.HOST:
            return rank // self.accelerators
        offset, index = rank % self.hosts, 0
        for size in reversed(self.dims[1:]):
            offset, at = divmod(offset, size)
            index = index * size + at
        return index


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
