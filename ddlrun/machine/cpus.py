"""CPU lists and masks in the kernel's formats."""

from collections.abc import Iterable

# A text with more hardware threads than this is broken.
MOST_PUS = 1 << 16
# 32 bits in hexadecimal, after 0x.
LONGEST_WORD = 10


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse the kernel's list format, with util-linux's steps. Raises ValueError on anything else.

    >>> sorted(parse_cpu_list("0-2,8,10-14:2"))
    [0, 1, 2, 8, 10, 12, 14]
    """
    pus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        numbers = [low, high or low, step or "1"]
        if not all(number.isascii() and number.isdigit() and len(number) < 9 for number in numbers):
            raise ValueError(f"{part!r} is not a range of CPUs")
        first, last, by = map(int, numbers)
        if not first <= last < MOST_PUS or not by:
            raise ValueError(f"{part!r} is not a range of CPUs")
        pus.update(range(first, last + 1, by))
    return frozenset(pus)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """Parse the kernel's format of masks. Raises ValueError on anything else.

    >>> sorted(parse_cpu_mask("00000001,00000005"))
    [0, 2, 32]
    """
    words = text.strip().split(",")
    if len(words) * 32 > MOST_PUS:
        raise ValueError(f"a mask of {len(words)} words")
    long = next((word for word in words if len(word) > LONGEST_WORD), None)
    if long is not None:
        raise ValueError(f"{long[:LONGEST_WORD]!r}... is not a word of a mask")
    bits = int("".join(f"{int(word or '0', 16):08x}" for word in words), 16)
    return frozenset(place for place, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")


def parse_cpuset(text: str) -> frozenset[int]:
    """Parse hwloc's bitmap format. Raises ValueError on anything else.

    >>> sorted(parse_cpuset("0x1,0x00000005"))
    [0, 2, 32]
    """
    words = text.split(",")
    if words[0] == "0xf...f":  # all further CPUs: the mask of a device that is near to all
        words = ["0xffffffff"] * (MOST_PUS // 32 - len(words) + 1) + words[1:]
    return parse_cpu_mask(",".join(words))


def cpu_list(numbers: Iterable[int]) -> str:
    """Render numbers in the kernel's list format.

    >>> cpu_list([3, 0, 1, 8])
    '0-1,3,8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)
