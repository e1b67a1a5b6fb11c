"""float32 that travels as float16 or bfloat16: on which dimensions, and the conversions, a block at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Convert = Callable[[Array, Array, Array], None]

# Elements: 128 KiB of float32 and the spare room beside it stay in a core's own cache.
BLOCK = 32768


class WireFormat(NamedTuple):
    """The type that float32 travels as ("": as it is) in the dimensions `axes` ("": those that leave the host)."""

    dtype: str = ""
    axes: str = ""


def parse_wire(text: str, where: str = "wire") -> WireFormat:
    """Parse "bfloat16" or "float16:YZ"; "" and "float32" are float32 as it is. Raises InputError on other types.

    >>> parse_wire("bfloat16:YZ")
    WireFormat(dtype='bfloat16', axes='YZ')
    """
    dtype, colon, axes = text.partition(":")
    if dtype not in (*FORMATS, "float32", "") or (colon and not axes):
        raise InputError(
            f"{where} {text!r}: float32 travels as {', '.join(FORMATS)} or float32; write for example bfloat16, or "
            "bfloat16:YZ for dimensions Y and Z alone"
        )
    return WireFormat(dtype, axes) if dtype in FORMATS else WireFormat()


def find_wire(text: str, mode: str, axes: str, leaving: str) -> str:
    """Return a text with its dimensions, "" where float32 travels as it is; a grid has `axes`, some leave the host.

    >>> find_wire("bfloat16", "r", "XYZ", "YZ"), find_wire("bfloat16", "r", "XYZ", "")
    ('bfloat16:YZ', '')
    """
    wire = parse_wire(text)
    unknown = sorted(set(wire.axes) - set(axes))
    if unknown:
        raise InputError(f"wire {text!r}: no dimension {unknown[0]!r}; there are {', '.join(axes)}")
    if wire.dtype and mode == "m":
        raise InputError(f"wire {text!r}: MPI's own collectives, mode m, know none; use mode r, c, b, n or p")
    chosen = wire.axes or leaving
    return f"{wire.dtype}:{chosen}" if wire.dtype and chosen else ""


class Converter:
    """Converts between float32 and one of FORMATS. Works in its own memory: one message at a time."""

    def __init__(self, dtype: str) -> None:
        self.memory, self._narrow, self._cut, self._widen = FORMATS[dtype]
        self._spare, self._half = np.empty(BLOCK, np.uint32), np.empty(BLOCK, self.memory)

    def pack(self, values: Array, target: Array, *, settled: bool) -> None:
        """Write float32 to `target` in 16 bits, rounded to the nearest even; `settled` values need no rounding."""
        convert = self._cut if settled else self._narrow
        for some, low, high in _blocks(values):
            convert(some, target[low:high], self._spare)

    def unpack(self, part: Array, target: Array) -> None:
        """Write what came in to float32."""
        for some, low, high in _blocks(part):
            self._widen(some, target[low:high], self._spare)

    def combine(self, part: Array, mine: Array, combine: Callable[[Array, Array, int], None], divisor: int) -> None:
        """Combine what came in with float32, in float32."""
        wide = self._spare.view(np.float32)
        for some, low, high in _blocks(part):
            theirs = wide[: high - low]
            self._widen(some, theirs, self._spare)
            combine(mine[low:high], theirs, divisor)

    def settle(self, values: Array) -> None:
        """Round float32 in place to what 16 bits hold: from here on it travels without a change."""
        for some, _, _ in _blocks(values):
            half = self._half[: len(some)]
            self._narrow(some, half, self._spare)
            self._widen(half, some, self._spare)


class _Format(NamedTuple):
    """How elements lie in memory, and (source, target, spare): rounding, what was rounded before, widening."""

    memory: type[np.generic]
    narrow: Convert
    cut: Convert
    widen: Convert


def _blocks(values: Array) -> Iterator[tuple[Array, int, int]]:
    for low in range(0, len(values), BLOCK):
        some = values[low : low + BLOCK]
        yield some, low, low + len(some)


def _narrow_bfloat(values: Array, target: Array, spare: Array) -> None:
    """Add half of the last place, less one bit where the place is even; then the upper half is what is wanted."""
    bits, rounded = values.view(np.uint32), spare[: len(values)]
    np.right_shift(bits, 16, out=rounded)
    np.bitwise_and(rounded, 1, out=rounded)
    np.add(rounded, 0x7FFF, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.right_shift(rounded, 16, out=target, casting="unsafe")
    # The addition would carry a NaN over into infinity or zero. To ask for the largest is the cheapest way to find one.
    if np.isnan(np.maximum.reduce(values)):
        target[np.isnan(values)] = 0x7FC0


def _cut_bfloat(values: Array, target: Array, _spare: Array) -> None:
    np.right_shift(values.view(np.uint32), 16, out=target, casting="unsafe")


def _widen_bfloat(part: Array, target: Array, _spare: Array) -> None:
    bits = target.view(np.uint32)
    np.copyto(bits, part)
    np.left_shift(bits, 16, out=bits)


def _narrow_half(values: Array, target: Array, _spare: Array) -> None:
    with np.errstate(over="ignore"):  # beyond 65504 is infinity, as on a GPU
        np.copyto(target, values, casting="same_kind")


def _widen_half(part: Array, target: Array, _spare: Array) -> None:
    np.copyto(target, part)


FORMATS = {
    "float16": _Format(np.float16, _narrow_half, _narrow_half, _widen_half),
    "bfloat16": _Format(np.uint16, _narrow_bfloat, _cut_bfloat, _widen_bfloat),
}
