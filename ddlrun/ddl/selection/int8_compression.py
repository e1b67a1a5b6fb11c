"""float32 sent as int8 with a scale per group of elements, and the feedback of what that loses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.selection.wire_compression import BLOCK, GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddlrun.ddl.group.flat import FlatArray

    Array = NDArray[Any]

SCALE_BYTES = 4
LARGEST = 127
# Arrays whose losses are kept. A model of 6 GB has as many buckets of 25 MB, which is that of DistributedDataParallel.
MOST_ARRAYS = 256


class Int8Converter:
    """Converter between float32 and int8, with the methods of `Converter`.

    Scales are powers of two, so values that were rounded before are packed without another loss, if their groups are
    the same ones. A group with a NaN or an infinity becomes NaN. It has its own scratch memory, so it serves one
    thread.
    """

    memory = np.uint8

    def __init__(self) -> None:
        self._scratch = np.empty(BLOCK, np.float32)

    @staticmethod
    def length(count: int) -> int:
        """Return the elements of packed memory that `count` elements of float32 take."""
        return count + SCALE_BYTES * -(-count // GROUP)

    def pack(self, values: Array, target: Array, *, settled: bool = False) -> None:  # noqa: ARG002 - as of Converter
        """Write float32 to `target`, rounded to nearest even."""
        for block, scales, integers in _groups(values, target):
            room = self._room(block)
            np.abs(block, out=room)
            largest = room.max(axis=1, keepdims=True)
            exponents = np.maximum(np.frexp(largest)[1] - 7, -126)
            scales[:] = np.where(np.isfinite(largest), np.ldexp(np.float32(1), exponents), np.float32(np.nan))
            np.multiply(block, np.ldexp(np.float32(1), -exponents), out=room)
            np.rint(room, out=room)
            np.clip(room, -LARGEST, LARGEST, out=room)
            with np.errstate(invalid="ignore"):  # a NaN has any integer, as its scale is NaN
                np.copyto(integers, room, casting="unsafe")

    def unpack(self, part: Array, target: Array) -> None:
        """Write received values to `target` as float32."""
        for block, scales, integers in _groups(target, part):
            np.multiply(integers, scales, out=block)

    def combine(self, part: Array, mine: Array, combine: Callable[[Array, Array, int], None], divisor: int) -> None:
        """Combine received values with `mine`, in float32."""
        for block, scales, integers in _groups(mine, part):
            theirs = np.multiply(integers, scales, out=self._room(block))
            combine(block, theirs, divisor)

    def settle(self, values: Array) -> None:
        """Round float32 in place to values that are forwarded unchanged from here on."""
        packed = np.empty(self.length(len(values)), self.memory)
        self.pack(values, packed)
        self.unpack(packed, values)

    def _room(self, block: Array) -> Array:
        return self._scratch[: block.size].reshape(block.shape)


class ErrorFeedback:
    """The losses of compressed reductions, which are added to the next values of the same arrays.

    Arrays are recognized by their memory, which is kept from being used for others as long as its losses are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[object, tuple[list[Any], Array]] = {}
        self._reported = False

    def add_to(self, elements: Array, bucket: Sequence[FlatArray], axes: str) -> Array:
        """Add what was lost to the elements of a bucket; return the array, now zeros, for what will be lost."""
        arrays = [array.elements if array.whole is None else array.whole for array in bucket]
        key = axes, *((array.__array_interface__["data"][0], array.nbytes) for array in arrays)
        kept = self._kept.pop(key, None) or (arrays, np.zeros_like(elements))
        self._kept[key] = kept  # as the last one
        if len(self._kept) > MOST_ARRAYS:
            del self._kept[next(iter(self._kept))]
            self._report()
        elements += kept[1]
        kept[1][:] = 0
        return kept[1]

    def _report(self) -> None:
        if not self._reported:
            sys.stderr.write(
                f"ddlrun.ddl: more than {MOST_ARRAYS} arrays were sent as int8, so the losses of the first ones are "
                "forgotten; reduce the same arrays in each step\n"
            )
        self._reported = True


def add_loss(losses: Array, exact: Array, rounded: Array, factor: int = 1) -> None:
    """Add the difference of exact and rounded values, times a factor, to `losses`, but nothing that is not finite."""
    lost = np.subtract(exact, rounded)
    lost *= factor
    losses += np.nan_to_num(lost, copy=False, nan=0, posinf=0, neginf=0)


def _groups(values: Array, packed: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield blocks of groups, one per row, with their scales and integers in packed memory; the last may be shorter."""
    whole, rows, row = len(values) // GROUP, BLOCK // GROUP, GROUP + SCALE_BYTES
    for first in range(0, whole, rows):
        end = min(first + rows, whole)
        yield _split(values[first * GROUP : end * GROUP], packed[first * row : end * row], end - first)
    if len(values) % GROUP:
        yield _split(values[whole * GROUP :], packed[whole * row :], 1)


def _split(values: Array, packed: Array, rows: int) -> tuple[Array, Array, Array]:
    table = packed.reshape(rows, -1)
    return values.reshape(rows, -1), table[:, :SCALE_BYTES].view(np.float32), table[:, SCALE_BYTES:].view(np.int8)
