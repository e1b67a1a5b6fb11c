"""Partitions of elements into blocks per learner, as the counts of MPI_Reduce_scatter, and into chunks; and a tree."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

# The first and last chunks of a ramp, as shares 1/n of the longest.
RAMP = (4, 2)


def binomial_tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent (None at the root) and the children of a rank in a binomial tree, the largest first.

    >>> binomial_tree(0, 4, 0), binomial_tree(3, 4, 0)
    ((None, [2, 1]), (2, []))
    """
    place, step = (rank - root) % size, 1
    while step < size and not place & step:
        step *= 2
    parent, children = (place - step + root) % size if place else None, []
    while step := step // 2:
        if place + step < size:
            children.append((place + step + root) % size)
    return parent, children


def block_bounds(count: int, parts: int) -> tuple[int, ...]:
    """Return the parts + 1 offsets that cut `count` elements into nearly equal blocks, the longer ones first.

    >>> block_bounds(11, 4)
    (0, 3, 6, 9, 11)
    """
    each, rest = divmod(count, parts)
    return tuple(part * each + min(part, rest) for part in range(parts + 1))


def chunk_ranges(count: int, longest: int) -> list[tuple[int, int]]:
    """Cut `count` elements into the fewest nearly equal ranges (low, high) of at most `longest` elements."""
    bounds = block_bounds(count, -(-count // longest) or 1)
    return list(zip(bounds, bounds[1:], strict=False))


def group_ranges(ranges: Sequence[tuple[int, int]], longest: int) -> list[list[tuple[int, int]]]:
    """Group consecutive ranges of a ramp, up to `longest` elements; its two ends are groups of their own.

    >>> group_ranges(ramped_ranges(64, 16), 40)
    [[(0, 4), (4, 12)], [(12, 26), (26, 39), (39, 52)], [(52, 60), (60, 64)]]
    """
    groups, rise = list[list[tuple[int, int]]](), len(RAMP)
    for at, (low, high) in enumerate(ranges):
        is_edge = len(ranges) > 2 * rise and at in {rise, len(ranges) - rise}
        if groups and not is_edge and high - groups[-1][0][0] <= longest:
            groups[-1].append((low, high))
        else:
            groups.append([(low, high)])
    return groups


def ramped_ranges(count: int, longest: int) -> list[tuple[int, int]]:
    """Cut `count` elements as `chunk_ranges` does, but begin with short chunks and end with such, if there are several.

    The slowest link then waits only for a short chunk at the start, and the others for one at the end.

    >>> ramped_ranges(64, 16)
    [(0, 4), (4, 12), (12, 26), (26, 39), (39, 52), (52, 60), (60, 64)]
    """
    ramp = [longest // share for share in RAMP]
    middle = count - 2 * sum(ramp)
    if middle < longest or not all(ramp):
        return chunk_ranges(count, longest)
    lengths = [*ramp, *(high - low for low, high in chunk_ranges(middle, longest)), *reversed(ramp)]
    return list(pairwise([0, *accumulate(lengths)]))
