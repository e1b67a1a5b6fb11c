"""What can be reduced and how: element types, operations, and the addition of what came in."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

OPERATIONS: dict[str, tuple[np.ufunc, str]] = {
    "sum": (np.add, "SUM"),
    "avg": (np.add, "SUM"),
    "max": (np.maximum, "MAX"),
    "min": (np.minimum, "MIN"),
    "prod": (np.multiply, "PROD"),
}
WIDE = frozenset("float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
HALF = frozenset(("float16", "bfloat16"))


class ReduceOp(NamedTuple):
    """An element type and an operation. `combine(mine, theirs, divisor)` works in place in `mine`."""

    dtype: str
    op: str
    combine: Callable[[Array, Array, int], None]

    @property
    def average(self) -> str:
        """Say when an average divides: half precision in each dimension, so that sums stay in range."""
        return "" if self.op != "avg" else "each" if self.dtype in HALF else "once"


@lru_cache(maxsize=64)
def kind_of(dtype: str, op: str) -> ReduceOp:
    """Return how to reduce elements of `dtype`; bfloat16 comes as uint16. Raises InputError on what has no meaning."""
    if op not in OPERATIONS:
        raise InputError(f"unknown operation {op!r}; known are {', '.join(OPERATIONS)}")
    if dtype not in WIDE | HALF:
        raise InputError(f"dtype {dtype} cannot be reduced; cast to one of {', '.join(sorted(WIDE | HALF))}")
    if op == "avg" and "int" in dtype:
        raise InputError(f"the average of {dtype} is no {dtype}; use op 'sum', or cast to float32")
    function = OPERATIONS[op][0]
    if dtype in WIDE:
        return ReduceOp(dtype, op, _wide(function))
    widen, narrow = (_from_bfloat, _to_bfloat) if dtype == "bfloat16" else (_from_half, _to_half)
    return ReduceOp(dtype, op, _half(function, widen, narrow))


def widened(values: Array, dtype: str) -> Array:
    """Return half precision as float32, anything else as it is."""
    return _from_bfloat(values) if dtype == "bfloat16" else _from_half(values) if dtype == "float16" else values


def store(values: Array, target: Array, dtype: str) -> None:
    """Write values to `target`, rounded to the nearest even where it is half precision."""
    if dtype in HALF:
        (_to_bfloat if dtype == "bfloat16" else _to_half)(values, target)
    else:
        target[:] = values


def _wide(function: np.ufunc) -> Callable[[Array, Array, int], None]:
    def combine(mine: Array, theirs: Array, divisor: int) -> None:
        function(mine, theirs, out=mine)
        if divisor > 1:
            mine /= divisor

    return combine


def _half(
    function: np.ufunc, widen: Callable[[Array], Array], narrow: Callable[[Array, Array], None]
) -> Callable[[Array, Array, int], None]:
    def combine(mine: Array, theirs: Array, divisor: int) -> None:
        result = widen(mine)
        function(result, widen(theirs), out=result)
        if divisor > 1:
            result /= divisor
        narrow(result, mine)

    return combine


def _from_half(values: Array) -> Array:
    return values.astype(np.float32)


def _to_half(values: Array, target: Array) -> None:
    with np.errstate(over="ignore"):  # beyond 65504 is infinity, as on a GPU
        target[:] = values


def _from_bfloat(values: Array) -> Array:
    wide = values.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _to_bfloat(values: Array, target: Array) -> None:
    """Round to the nearest even; a NaN stays one, else the addition could carry it over into a zero."""
    bits = values.view(np.uint32)
    target[:] = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    nan = np.isnan(values)
    if nan.any():
        target[nan] = 0x7FC0
