"""The operations of torch.distributed, as those of `ddlrun.ddl`."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import distributed as torch_distributed

from ddlrun.ddl.group.reduce_ops import ReduceOp as Operator
from ddlrun.ddl.group.reduce_ops import combine_with, find_reduce_op
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.errors import InputError

ReduceOp: Any = torch_distributed.ReduceOp  # its stubs lack the operations

NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.PRODUCT: "prod",
}  # fmt: skip
BITWISE = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor}
# Booleans have the results of a sum, product and so on that is then true or false.
LOGICAL = {
    ReduceOp.SUM: np.logical_or, ReduceOp.MAX: np.logical_or, ReduceOp.BOR: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and, ReduceOp.MIN: np.logical_and, ReduceOp.BAND: np.logical_and,
    ReduceOp.BXOR: np.logical_xor,
}  # fmt: skip
COMPLEX = {ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply}


def read_operation(opts: Any) -> Any:  # noqa: ANN401 - options of torch's, and a ReduceOp
    """Return the operation of a call's options; a call without options sums."""
    return ReduceOp.SUM if opts is None else opts.reduceOp


def find_operator(op: Any, dtype: str) -> Operator:  # noqa: ANN401 - a ReduceOp
    """Return the operator of an operation. Raises ArgumentError if the dtype does not support it."""
    kind = next(kind for kind in ReduceOp.RedOpType.__members__.values() if op == kind)
    is_complex = dtype.startswith("complex")
    functions = LOGICAL if dtype == "bool" else COMPLEX if is_complex else BITWISE if "int" in dtype else {}
    if kind in functions:
        return Operator(dtype, NAMES.get(kind, "elements"), combine_with(functions[kind]))
    if kind == ReduceOp.AVG and "int" in dtype:
        return Operator(dtype, "avg", _average_integers)
    if kind not in NAMES or is_complex or dtype == "bool":
        raise ArgumentError(f"backend ddl: {dtype} does not support {kind.name}; use SUM, or cast to another type")
    try:
        return find_reduce_op(dtype, NAMES[kind])
    except InputError as error:
        raise ArgumentError(*error.problems) from error


def _average_integers(mine: Any, theirs: Any, divisor: int) -> None:  # noqa: ANN401 - numpy arrays
    """Add integers, and divide the sum towards zero, as NCCL does."""
    mine += theirs
    if divisor > 1:
        wide = mine.astype(f"{mine.dtype.kind}8")
        mine[:] = (wide - np.fmod(wide, divisor)) // divisor
