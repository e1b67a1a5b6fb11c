"""Sets of numbers such as 0-3,8: parse and render.

ClusterShell's RangeSet keeps texts: it takes 120 to 170 ms to parse or render 100,000 numbers, which take 5 to 30 ms
here. It cannot read the kernel's steps (10-14:2), and reads -3 as a number. Ranks load this module, too: it has to run
with Python 3.8 and the standard library alone.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    Item = TypeVar("Item")

# A text with larger numbers, of ranks or of hardware threads, is broken.
MOST_NUMBERS = 1 << 20


def parse_ranges(text: str) -> frozenset[int]:
    """Parse numbers and ranges in the format of the kernel's CPU lists, with steps. Raises ValueError on anything else.

    Empty parts have no numbers: numactl prints 0-19,,40-59.

    >>> sorted(parse_ranges("0-2,8,10-14:2")), parse_ranges("")
    ([0, 1, 2, 8, 10, 12, 14], frozenset())
    """
    numbers: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        words = [low, high or low, step or "1"]
        known = all(word.isascii() and word.isdigit() and len(word) < 9 for word in words)
        first, last, by = map(int, words) if known else (1, 0, 0)
        if not first <= last < MOST_NUMBERS or not by:
            raise ValueError(f"{part!r} is not a range of numbers")
        numbers.update(range(first, last + 1, by))
    return frozenset(numbers)


def render_ranges(numbers: Iterable[int]) -> str:
    """Render numbers in ascending order, the inverse of `parse_ranges`.

    >>> render_ranges([3, 0, 1, 8])
    '0-1,3,8'
    """
    return ",".join(render_range(low, high) for low, high in find_runs(sorted(numbers), is_successor))


def render_range(low: object, high: object) -> str:
    """Render the range between two ends, which may be equal.

    >>> render_range(0, 3), render_range(8, 8)
    ('0-3', '8')
    """
    return f"{low}" if low == high else f"{low}-{high}"


def render_spaced(numbers: Sequence[int]) -> str:
    """Render ascending numbers, shortened where they are evenly spaced or many.

    >>> render_spaced([0, 4, 8, 12]), render_spaced([3, 4, 5]), render_spaced([7])
    ('0,4..12', '3-5', '7')
    """
    steps = {high - low for low, high in zip(numbers, numbers[1:])}  # noqa: B905 - newer than Python 3.8
    if steps <= {1}:
        return render_ranges(numbers)
    if len(numbers) > 2 and len(steps) == 1:
        return f"{numbers[0]},{numbers[1]}..{numbers[-1]}"
    return ",".join(map(str, numbers[:8])) + (",..." if len(numbers) > 8 else "")


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """Render numbers of one kind of thing after their noun.

    >>> name_numbers("rank", [2]), name_numbers("rank", [3, 0, 1])
    ('rank 2', 'ranks 0-1,3')
    """
    text = render_ranges(numbers)
    return f"{noun} {text}" if text.isdigit() else f"{noun}s {text}"


def find_runs(items: Iterable[Item], follows: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Return the first and the last item of each run of items that follow each other, in the order of the items.

    >>> find_runs([3, 0, 1, 2], is_successor)
    [[3, 3], [0, 2]]
    """
    runs: list[list[Item]] = []
    for item in items:
        if runs and follows(runs[-1][1], item):
            runs[-1][1] = item
        else:
            runs.append([item, item])
    return runs


def is_successor(low: int, high: int) -> bool:
    """Return True if one number comes directly after another one."""
    return high == low + 1
