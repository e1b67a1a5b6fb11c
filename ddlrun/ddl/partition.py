"""Partitions of elements: into blocks per learner, as the counts of MPI_Reduce_scatter, and into chunks."""


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
