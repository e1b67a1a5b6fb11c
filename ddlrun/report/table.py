"""Tables of text."""

import itertools
from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def left_aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with all columns to the left; rows may end early.

    >>> list(left_aligned([("RUN", "RANKS"), ("a", "12"), ("b",)]))
    ['RUN  RANKS', 'a    12', 'b']
    """
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
