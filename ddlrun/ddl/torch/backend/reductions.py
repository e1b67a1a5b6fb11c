"""The methods of a process group that reduce."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed as torch_distributed

from ddlrun.ddl.group.reduce_ops import ReduceOp as Operator
from ddlrun.ddl.group.reduce_ops import combine_with, find_reduce_op
from ddlrun.ddl.torch.backend import arguments
from ddlrun.ddl.torch.backend.arguments import as_tensors, read_seconds
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.ddl.torch.backend.group_base import GroupBase
from ddlrun.ddl.torch.backend.tensor_bytes import SparseSum, TensorBytes, join, split_into
from ddlrun.ddl.torch.backend.works import Call
from ddlrun.errors import InputError

if TYPE_CHECKING:
    Tensors = list[torch.Tensor]

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


class ReducingGroup(GroupBase):
    """A process group that reduces."""

    def allreduce(self, tensors: Tensors, opts: Any = None, op: Any = ReduceOp.SUM) -> Any:  # noqa: ANN401
        """Reduce tensors in place over all members. Several tensors are reduced with each other, too."""
        tensors, call = as_tensors(tensors), "allreduce"
        arguments.check_some(call, tensors)
        arguments.check_alike(call, tensors, tensors[0])
        op = op if opts is None else opts.reduceOp
        if tensors[0].layout != torch.strided:
            return self._allreduce_sparse(tensors, op, opts)
        memory = TensorBytes(tensors[0])
        elements, dtype = memory.elements
        operator = find_operator(op, dtype)
        for tensor in tensors[1:]:
            operator.combine(elements, TensorBytes(tensor).elements[0], 1)

        def done() -> None:
            memory.write_back()
            for tensor in tensors[1:]:
                tensor.detach().copy_(tensors[0].detach())

        start = partial(self._collectives.allreduce, memory, operator)
        return self._submit(Call(call, tensors, read_seconds(opts)), start, done)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce tensors of one dtype in place over all members, as one."""
        call = "allreduce_coalesced"
        arguments.check_same_type(call, tensors)
        whole = join(tensors)
        memory = TensorBytes(whole)
        operator = find_operator(read_operation(opts), memory.elements[1])
        start = partial(self._collectives.allreduce, memory, operator)
        return self._submit(Call(call, tensors, read_seconds(opts)), start, partial(split_into, whole, tensors))

    def reduce(self, tensors: Tensors, opts: Any = None, root: int = 0, op: Any = ReduceOp.SUM) -> Any:  # noqa: ANN401
        """Reduce a tensor over all members; the result is in that of the root."""
        tensors, call = as_tensors(tensors), "reduce"
        root, op = (root, op) if opts is None else (opts.rootRank, opts.reduceOp)
        arguments.check_root(call, root, self.size())
        arguments.check_root_tensor(call, 0 if opts is None else opts.rootTensor, tensors)
        arguments.check_single(call, "tensor list", tensors)
        tensor = tensors[0].detach()
        whole = tensor.reshape(-1).clone()
        memory = TensorBytes(whole)
        operator = find_operator(op, memory.elements[1])

        def done() -> None:
            if self.rank() == root:
                tensor.copy_(whole.reshape(tensor.shape))

        start = partial(self._collectives.allreduce, memory, operator)
        return self._submit(Call(call, tensors, read_seconds(opts)), start, done)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce a tensor per member, each for its member."""
        outputs, call = as_tensors(outputs), "reduce_scatter"
        arguments.check_single(call, "output tensor list", outputs)
        arguments.check_single(call, "input list", inputs)
        arguments.check_length(call, "input", inputs[0], self.size())
        arguments.check_alike(call, inputs[0], outputs[0], sizes=False)
        # Blocks may have different sizes, of which the engine knows nothing: each becomes as long as the longest.
        size = max(tensor.numel() for tensor in inputs[0])
        whole = outputs[0].new_zeros((self.size(), size))
        for row, tensor in zip(whole, inputs[0], strict=True):
            row[: tensor.numel()] = tensor.detach().reshape(-1)
        return self._reduce_scatter(call, outputs[0], whole, opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce a tensor; each member gets its block."""
        call = "reduce_scatter_single"
        arguments.check_alike(call, [source], output, sizes=False)
        if source.numel() != output.numel() * self.size():
            raise ArgumentError(
                f"ddl {call}: invalid tensor size: the input of {source.numel()} elements is not {self.size()} times "
                f"the output of {output.numel()}"
            )
        return self._reduce_scatter(call, output, source.detach().reshape(self.size(), -1).clone(), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce tensors of one dtype as one; each member gets its block of each."""
        call = "reduce_scatter_single_coalesced"
        arguments.check_same_type(call, inputs)
        arguments.check_length(call, "output", outputs, len(inputs))
        whole = torch.cat([tensor.detach().reshape(self.size(), -1) for tensor in inputs], dim=1)
        return self._reduce_scatter(call, outputs, whole, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> Any:  # noqa: ANN401
        """Complete when all members have called it, and all that this one called before is complete."""
        memory = TensorBytes(torch.zeros(1, dtype=torch.uint8))
        start = partial(self._collectives.allreduce, memory, find_operator(ReduceOp.SUM, "uint8"))
        return self._submit(Call("barrier", [], read_seconds(opts)), start)

    def _reduce_scatter(self, call: str, output: Any, rows: torch.Tensor, opts: Any) -> Any:  # noqa: ANN401
        """Reduce a row per member; `output` is the tensor, or the tensors, that the row of this member fills."""
        memory = TensorBytes(rows.reshape(-1))
        operator = find_operator(read_operation(opts), memory.elements[1])
        start = partial(self._collectives.reduce_scatter, memory, operator)
        done = partial(split_into, rows[self.rank()], as_tensors(output))
        return self._submit(Call(call, output, read_seconds(opts)), start, done)

    def _allreduce_sparse(self, tensors: Tensors, op: Any, opts: Any) -> Any:  # noqa: ANN401
        if op != ReduceOp.SUM:
            raise ArgumentError(f"ddl allreduce: unsupported reduction operation {op} of sparse tensors; use SUM")
        total = SparseSum(tensors)
        start = partial(self._blobs.start, total.pack(), total.blobs)
        return self._submit(Call("allreduce", tensors, read_seconds(opts)), start, total.write)
