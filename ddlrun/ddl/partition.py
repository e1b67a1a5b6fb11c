"""How elements are dealt out: to learners, as MPI_Reduce_scatter's counts do, and to chunks."""


def cuts(count: int, parts: int) -> tuple[int, ...]:
    """Return the parts + 1 offsets that cut `count` elements; the first parts are longer by one where it must be.

    >>> cuts(11, 4)
    (0, 3, 6, 9, 11)
    """
    each, over = divmod(count, parts)
    return tuple(part * each + min(part, over) for part in range(parts + 1))


def spans(count: int, longest: int) -> list[tuple[int, int]]:
    """Cut `count` elements into the fewest nearly equal spans (low, high) of at most `longest` elements."""
    bounds = cuts(count, -(-count // longest) or 1)
    return list(zip(bounds, bounds[1:], strict=False))
