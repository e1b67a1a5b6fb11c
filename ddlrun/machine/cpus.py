"""Masks of CPUs in the formats of the kernel and of hwloc."""

# A text with more hardware threads than this is broken.
MOST_PUS = 1 << 16
# 32 bits in hexadecimal, after 0x.
LONGEST_WORD = 10


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
