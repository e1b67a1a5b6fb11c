"""The job's shape: "4x2x3" <-> Topology, and rank <-> coordinates."""

import math
import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ddlrun.errors import InputError

AXES = ("X", "Y", "Z", "A")
MEANING = ("accelerators per host", "hosts per rack", "racks", "aisles")
# MPI counts ranks in a C int.
MOST_RANKS = 2**31 - 1


class RankOrder(Enum):
    """Which rank sits where: see `Topology.rank`."""

    DDL = "ddl"
    HOST = "host"


class _Dims(NamedTuple):
    dims: tuple[int, ...]


class Topology(_Dims):
    """X accelerators per host, Y hosts per rack, Z racks per aisle, A aisles.

    `dims` always has X, Y and Z; A stands there only where it is more than 1.
    Raises InputError on no dimension, more than four, or one below 1.
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
        """X: ranks per host."""
        return self.dims[0]

    @property
    def hosts(self) -> int:
        """Y*Z*A: hosts of the job."""
        return math.prod(self.dims[1:])

    @property
    def size(self) -> int:
        """X*Y*Z*A: ranks of the job."""
        return math.prod(self.dims)

    def host_coords(self, host_index: int) -> tuple[int, ...]:
        """Return (y, z[, a]) of the host at `host_index` = (a*Z + z)*Y + y: a rack's hosts adjoin."""
        coords = []
        for size in self.dims[1:]:
            host_index, at = divmod(host_index, size)
            coords.append(at)
        return tuple(coords)

    def rank(self, host_index: int, local_rank: int, order: RankOrder) -> int:
        """Return the rank of `local_rank` on the host at `host_index`.

        DDL: ((x*Y + y)*Z + z)*A + a, rank_gen.py's order, X the slowest. HOST: host_index*X + x.
        """
        stride, offset = self.rank_line(host_index, order)
        return local_rank * stride + offset

    def rank_line(self, host_index: int, order: RankOrder) -> tuple[int, int]:
        """Return (stride, offset): on that host, local rank x has the rank x*stride + offset."""
        if order is RankOrder.HOST:
            return 1, host_index * self.accelerators
        offset = 0
        for size in self.dims[1:]:
            host_index, at = divmod(host_index, size)
            offset = offset * size + at
        return self.hosts, offset


def parse_topology(text: str, where: str = "topology") -> Topology:
    """Parse "4x2x3": one to four positive integers with an x between; missing ones are 1.

    Raises InputError, naming each dimension that is wrong and its meaning.

    >>> parse_topology("4x2x3")
    Topology(dims=(4, 2, 3))
    >>> str(parse_topology("4"))
    '4x1x1'
    """
    words = text.strip().lower().split("x")
    bad = [(i, word) for i, word in enumerate(words) if not re.fullmatch(r"[0-9]{1,9}", word)]
    if bad:
        raise InputError(*(_malformed(text, where, i, word) for i, word in bad))
    problems = _problems([int(word) for word in words])
    if problems:
        raise InputError(*(f"{where} {text!r}: {problem}" for problem in problems))
    return Topology(tuple(map(int, words)))


def _malformed(text: str, where: str, index: int, word: str) -> str:
    column = sum(len(part) + 1 for part in text.strip().lower().split("x")[:index]) + 1
    found = f"{word!r} is not a positive integer" if word else "nothing there"
    return f"{where} {text!r}, column {column}: {found}; write XxYxZ, for example 4x2x3 = {describe((4, 2, 3))}"


def _problems(dims: Sequence[int]) -> list[str]:
    if not 1 <= len(dims) <= len(AXES):
        return [f"{len(dims)} dimensions; one to four are possible: X x Y x Z x A"]
    small = [
        f"{axis} ({meaning}) is {size}; it must be at least 1"
        for axis, meaning, size in zip(AXES, MEANING, dims, strict=False)
        if size < 1
    ]
    size = math.prod(dims)
    if not small and size > MOST_RANKS:
        return [f"{size} ranks; MPI counts at most {MOST_RANKS}"]
    return small


def describe(dims: Sequence[int], first: int = 0) -> str:
    """Say dimensions in words; `first` is the axis that they begin with.

    >>> describe((4, 2, 3)), describe((4, 1, 1))
    ('4 accelerators per host x 2 hosts per rack x 3 racks', '4 accelerators per host x 1 host per rack x 1 rack')
    """
    words = zip(dims, MEANING[first:], strict=False)
    return " x ".join(f"{size} {_one(meaning) if size == 1 else meaning}" for size, meaning in words)


def _one(meaning: str) -> str:
    return re.sub(r"s( |$)", r"\1", meaning, count=1)
