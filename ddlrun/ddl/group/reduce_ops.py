"""Reduction operators: element types, operations, and the addition of received elements."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlrun.ddl.selection.wire_compression import FORMATS
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

# Operation -> numpy's function and MPI's operation for it. An average is a sum that is divided.
OPERATIONS: dict[str, tuple[np.ufunc, str]] = {
    "sum": (np.add, "SUM"),
    "avg": (np.add, "SUM"),
    "max": (np.maximum, "MAX"),
    "min": (np.minimum, "MIN"),
    "prod": (np.multiply, "PROD"),
}
WIDE = frozenset("float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
HALF = frozenset(FORMATS)


class ReduceOp(NamedTuple):
    """An operation on a dtype. `combine(mine, theirs, divisor)` reduces two arrays in place into `mine`."""

    dtype: str
    op: str
    combine: Callable[[Array, Array, int], None]

    @property
    def division(self) -> str:
        """When an average divides: "each" dimension (half precision, so that sums stay in range), "once", or ""."""
        return "" if self.op != "avg" else "each" if self.dtype in HALF else "once"


@lru_cache(maxsize=64)
def find_reduce_op(dtype: str, op: str) -> ReduceOp:
    """Return the operator for a dtype. Arrays of bfloat16 are passed to it as uint16.

    Raises InputError if the operation is unknown or has no meaning for the dtype.
    """
    if op not in OPERATIONS:
        raise InputError(f"unknown operation {op!r}; known are {', '.join(OPERATIONS)}")
    if dtype not in WIDE | HALF:
        raise InputError(f"dtype {dtype} cannot be reduced; cast to one of {', '.join(sorted(WIDE | HALF))}")
    if op == "avg" and "int" in dtype:
        raise InputError(f"the average of {dtype} is no {dtype}; use op 'sum', or cast to float32")
    function = OPERATIONS[op][0]
    if dtype in WIDE:
        return ReduceOp(dtype, op, combine_with(function))
    return ReduceOp(dtype, op, _combine_half(function, dtype))


def can_narrow(wire: str, reduce_op: ReduceOp) -> bool:
    """Return True if an operation on a dtype may use a wire. What int8 loses can be made up for in sums alone."""
    return reduce_op.dtype == "float32" and (not wire.startswith("int8") or reduce_op.op in {"sum", "avg"})


def combine_with(function: np.ufunc) -> Callable[[Array, Array, int], None]:
    """Return a `combine` (see `ReduceOp`) of elements that numpy has."""

    def combine(mine: Array, theirs: Array, divisor: int) -> None:
        function(mine, theirs, out=mine)
        if divisor > 1:
            mine /= divisor

    return combine


def widen(values: Array, dtype: str) -> Array:
    """Return half precision as a float32 copy, any other dtype unchanged."""
    if dtype not in HALF:
        return values
    wide = np.empty(len(values), np.float32)
    FORMATS[dtype].widen(values, wide, wide)
    return wide


def store(values: Array, target: Array, dtype: str) -> None:
    """Write values to `target`; float32 that becomes half precision is rounded to nearest even."""
    if dtype in HALF:
        FORMATS[dtype].narrow(values, target, np.empty(len(values), np.uint32))
    else:
        target[:] = values


def _combine_half(function: np.ufunc, dtype: str) -> Callable[[Array, Array, int], None]:
    def combine(mine: Array, theirs: Array, divisor: int) -> None:
        result = widen(mine, dtype)
        function(result, widen(theirs, dtype), out=result)
        if divisor > 1:
            result /= divisor
        store(result, mine, dtype)

    return combine
