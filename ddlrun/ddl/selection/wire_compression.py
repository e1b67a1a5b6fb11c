"""float32 sent as float16, bfloat16 or int8: the choice of dimensions, and the conversions to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Convert = Callable[[Array, Array, Array], None]

# Elements that are converted at once: 128 KiB of float32 and as much scratch memory stay in a core's own cache.
BLOCK = 32768
# Elements of int8 with one scale, which is sent before them as float32: 1.6 % more bytes.
GROUP = 256


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The type that float32 is sent as ("": float32) in the dimensions `axes` ("": those that leave the host)."""

    dtype: str = ""
    axes: str = ""


@lru_cache(maxsize=16)
def parse_wire(text: str, where: str = "wire") -> WireFormat:
    """Parse "bfloat16" or "float16:YZ"; "" and "float32" mean no conversion. Raises InputError on other types.

    >>> parse_wire("bfloat16:YZ")
    WireFormat(dtype='bfloat16', axes='YZ')
    """
    dtype, colon, axes = text.partition(":")
    if dtype not in (*WIRES, "float32", "") or (colon and not axes):
        raise InputError(
            f"{where} {text!r}: float32 travels as {', '.join(WIRES)} or float32; write for example bfloat16, or "
            "bfloat16:YZ for dimensions Y and Z alone"
        )
    return WireFormat(dtype, axes) if dtype in WIRES else WireFormat()


def find_wire(text: str, mode: str, axes: str, leaving: str) -> str:
    """Return the text with its dimensions filled in, or "" where float32 is sent as float32.

    Args:
        text: As for `parse_wire`.
        mode: The mode of the DDL string. m allows no conversion.
        axes: The dimensions of the grid.
        leaving: Those of them that leave the host.

    Raises:
        InputError: The grid has no such dimension, or the mode no conversion.

    >>> find_wire("bfloat16", "r", "XYZ", "YZ"), find_wire("bfloat16", "r", "XYZ", "")
    ('bfloat16:YZ', '')
    """
    wire = parse_wire(text)
    unknown = sorted(set(wire.axes) - set(axes))
    if unknown:
        raise InputError(f"wire {text!r}: no dimension {unknown[0]!r}; there are {', '.join(axes)}")
    if wire.dtype and mode == "m":
        raise InputError(f"wire {text!r}: not supported by mode m, MPI's own collectives; use mode r, c, b, n or p")
    chosen = wire.axes or leaving
    return f"{wire.dtype}:{chosen}" if wire.dtype and chosen else ""


class Converter:
    """Converter between float32 and one of FORMATS. It has its own scratch memory, so it serves one thread."""

    length = staticmethod(int)
    """length(count): the elements of packed memory that `count` elements of float32 take."""

    def __init__(self, dtype: str) -> None:
        kind = FORMATS[dtype]
        self.memory, self._narrow, self._truncate, self._widen = kind.memory, kind.narrow, kind.truncate, kind.widen
        self._scratch, self._half = np.empty(BLOCK, np.uint32), np.empty(BLOCK, self.memory)

    def pack(self, values: Array, target: Array, *, settled: bool) -> None:
        """Write float32 to `target` in 16 bits, rounded to nearest even; `settled` values are only truncated."""
        convert = self._truncate if settled else self._narrow
        for block, low, high in _blocks(values):
            convert(block, target[low:high], self._scratch)

    def unpack(self, part: Array, target: Array) -> None:
        """Write received values to `target` as float32."""
        for block, low, high in _blocks(part):
            self._widen(block, target[low:high], self._scratch)

    def combine(self, part: Array, mine: Array, combine: Callable[[Array, Array, int], None], divisor: int) -> None:
        """Combine received values with `mine`, in float32."""
        wide = self._scratch.view(np.float32)
        for block, low, high in _blocks(part):
            theirs = wide[: high - low]
            self._widen(block, theirs, self._scratch)
            combine(mine[low:high], theirs, divisor)

    def settle(self, values: Array) -> None:
        """Round float32 in place to values that 16 bits hold: from here on they are forwarded unchanged."""
        for block, _, _ in _blocks(values):
            half = self._half[: len(block)]
            self._narrow(block, half, self._scratch)
            self._widen(half, block, self._scratch)


@dataclass(frozen=True, slots=True)
class _Format:
    """A 16-bit type: its dtype in memory, and functions (source, target, scratch) that convert a block.

    narrow: rounds to nearest even. truncate: for values that were rounded before. widen: to float32.
    """

    memory: type[np.generic]
    narrow: Convert
    truncate: Convert
    widen: Convert


def _blocks(values: Array) -> Iterator[tuple[Array, int, int]]:
    """Yield blocks that fit the scratch memory, with their bounds."""
    for low in range(0, len(values), BLOCK):
        block = values[low : low + BLOCK]
        yield block, low, low + len(block)


def _narrow_bfloat(values: Array, target: Array, scratch: Array) -> None:
    """Round to nearest even: add half of the last place, less one bit if that is even, and take the upper 16 bits."""
    bits, rounded = values.view(np.uint32), scratch[: len(values)]
    np.right_shift(bits, 16, out=rounded)
    np.bitwise_and(rounded, 1, out=rounded)
    np.add(rounded, 0x7FFF, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.right_shift(rounded, 16, out=target, casting="unsafe")
    # The addition would turn a NaN into infinity or zero. The largest value is the cheapest test for a NaN.
    if np.isnan(np.maximum.reduce(values, initial=-np.inf)):
        target[np.isnan(values)] = 0x7FC0


def _truncate_bfloat(values: Array, target: Array, _scratch: Array) -> None:
    np.right_shift(values.view(np.uint32), 16, out=target, casting="unsafe")


def _widen_bfloat(part: Array, target: Array, _scratch: Array) -> None:
    bits = target.view(np.uint32)
    np.copyto(bits, part)
    np.left_shift(bits, 16, out=bits)


def _narrow_half(values: Array, target: Array, _scratch: Array) -> None:
    with np.errstate(over="ignore"):  # values beyond 65504 become infinity, as on a GPU
        np.copyto(target, values, casting="same_kind")


def _widen_half(part: Array, target: Array, _scratch: Array) -> None:
    np.copyto(target, part)


FORMATS = {
    "float16": _Format(np.float16, _narrow_half, _narrow_half, _widen_half),
    "bfloat16": _Format(np.uint16, _narrow_bfloat, _truncate_bfloat, _widen_bfloat),
}
# Type -> bytes per element on the wire. int8 also has scales: `int8_compression`.
WIRES = {**dict.fromkeys(FORMATS, 2), "int8": 1}
