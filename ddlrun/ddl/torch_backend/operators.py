"""The operations of torch.distributed, as those of `ddlrun.ddl`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import distributed as torch_distributed

from ddlrun.ddl.reduce_ops import WIDE, find_reduce_op
from ddlrun.ddl.reduce_ops import ReduceOp as Operator
from ddlrun.errors import InputError

ReduceOp: Any = torch_distributed.ReduceOp  # its stubs lack the operations

NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.PRODUCT: "prod",
}  # fmt: skip
BITWISE = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor}


def read_operation(opts: Any) -> Any:  # noqa: ANN401 - options of torch's, and a ReduceOp
    """Return the operation of a call's options; a call without options sums."""
    return ReduceOp.SUM if opts is None else opts.reduceOp


def find_operator(op: Any, dtype: str) -> Operator:  # noqa: ANN401 - a ReduceOp
    """Return the operator of an operation. Raises InputError if there is none."""
    for known, function in BITWISE.items():
        if op == known and dtype in WIDE:
            return Operator(dtype, "bitwise", partial(_combine, function))
    for known, name in NAMES.items():
        if op == known:
            return find_reduce_op(dtype, name)
    raise InputError(f"backend ddl: no operation {op} of {dtype}")


def _combine(function: np.ufunc, mine: Any, theirs: Any, _divisor: int) -> None:  # noqa: ANN401
    function(mine, theirs, out=mine)
