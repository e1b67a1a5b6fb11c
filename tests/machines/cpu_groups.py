"""Groups of CPUs in the notation of the machines' descriptions."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.ranges import parse_ranges

Cpus = frozenset[int]
Numbered = Mapping[int, Cpus]
"""CPUs by the OS index of a package or a NUMA node."""

Groups = int | str | dict[int | str, str | int]
"""Groups that count from 0, or by their numbers, which may be lists such as 252-255."""


def parse_groups(text: str | int) -> tuple[Cpus, ...]:
    """Parse groups of CPUs. Raises ValueError on anything else.

    >>> [sorted(group) for group in parse_groups("0-5/3 8,10")]  # groups of three consecutive CPUs; one group
    [[0, 1, 2], [3, 4, 5], [8, 10]]
    >>> [sorted(group) for group in parse_groups("0-3/2+4")]  # each with the CPUs whose numbers are larger by 4
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    return tuple(group for word in str(text).split() for group in _groups(word))


def _groups(word: str) -> Iterator[Cpus]:
    match = re.fullmatch(r"([\d,:-]+)(?:/(\d+))?((?:\+\d+)*)", word)
    if not match:
        raise ValueError(f"{word!r} is not a group of CPUs such as 0-7, 0-7/2 or 0-3/1+4")
    first = sorted(parse_ranges(match[1]))
    size = int(match[2] or len(first))
    if not size or len(first) % size:
        raise ValueError(f"{word!r}: {len(first)} CPUs cannot be divided into groups of {size}")
    shifts = [0, *(int(shift) for shift in match[3].split("+")[1:])]
    for start in range(0, len(first), size):
        yield frozenset(cpu + shift for cpu in first[start : start + size] for shift in shifts)


def parse_numbered(groups: Groups) -> Numbered:
    """Parse groups by number. Raises ValueError on anything else."""
    if isinstance(groups, str | int):
        return dict(enumerate(parse_groups(groups)))
    return {index: cpus for key, text in groups.items() for index, cpus in _listed(str(key), text)}


def _listed(key: str, text: str | int) -> Iterator[tuple[int, Cpus]]:
    """Yield the groups of a list of numbers: one for each, or the same one for all."""
    numbers, groups = sorted(parse_ranges(key)), parse_groups(text) or (frozenset[int](),)
    if len(groups) not in (1, len(numbers)):
        raise ValueError(f"{key}: {text}: {len(groups)} groups for {len(numbers)} numbers")
    yield from zip(numbers, groups if len(groups) > 1 else groups * len(numbers), strict=True)
