"""The methods of a process group that copy tensors from member to member, and reduce nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.torch.backend import arguments
from ddlrun.ddl.torch.backend.arguments import as_tensors, read_seconds
from ddlrun.ddl.torch.backend.collectives import Blocks
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.ddl.torch.backend.reductions import ReducingGroup
from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes
from ddlrun.ddl.torch.backend.works import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Tensors = list[torch.Tensor]


class CopyingGroup(ReducingGroup):
    """A process group that also copies."""

    def broadcast(self, tensors: Tensors, opts: Any = None, root: int = 0) -> Any:  # noqa: ANN401
        """Fill tensors with that of the root: with its `rootTensor`, if it has several."""
        tensors, call = as_tensors(tensors), "broadcast"
        root, at = (root, 0) if opts is None else (opts.rootRank, opts.rootTensor)
        arguments.check_root(call, root, self.size())
        arguments.check_root_tensor(call, at, tensors)
        arguments.check_alike(call, tensors, tensors[0])
        memory = TensorBytes(tensors[at])

        def done() -> None:
            memory.write_back()
            for tensor in tensors[:at] + tensors[at + 1 :]:
                tensor.detach().copy_(tensors[at].detach())

        start = partial(self._collectives.broadcast, memory, root)
        return self._submit(Call(call, tensors, read_seconds(opts)), start, done)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Copy the tensors of each member to each list of outputs."""
        call = "allgather"
        if not inputs:
            raise ArgumentError(f"ddl {call}: requires non-empty input tensor list")
        if len(outputs) != len(inputs):
            raise ArgumentError(f"ddl {call}: requires input/output tensor lists to have the same length")
        for at, tensors in enumerate(outputs):
            if len(tensors) != len(inputs) * self.size():
                raise ArgumentError(
                    f"ddl {call}: invalid output tensor list at index {at}: {len(tensors)} tensors instead of "
                    f"{len(inputs) * self.size()}"
                )
        for tensors in (inputs, *outputs):
            arguments.check_alike(call, tensors, inputs[0])
        result = outputs if len(outputs) > 1 else outputs[0]
        return self._gather_rows(Call(call, result, read_seconds(opts)), outputs, inputs)

    def allgather_coalesced(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Copy the tensors of each member, which may differ in size, to the list of outputs for this member."""
        call = "allgather_coalesced"
        if len(output_lists) != self.size():
            raise ArgumentError(f"ddl {call}: output lists should be equal to world size {self.size()}")
        for tensors in output_lists:
            arguments.check_length(call, "output", tensors, len(inputs))
            for at, (output, source) in enumerate(zip(tensors, inputs, strict=True)):
                if output.shape != source.shape:
                    raise ArgumentError(f"ddl {call}: invalid size of output tensor at index {at}: {[*output.shape]}")
                if output.dtype != source.dtype:
                    raise ArgumentError(f"ddl {call}: invalid tensor type at index {at}: {output.dtype}")
        outputs = [tensor for tensors in output_lists for tensor in tensors]
        return self._gather_rows(Call(call, output_lists, read_seconds(opts)), [outputs], inputs)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:  # noqa: ANN401
        """Fill a tensor with those of all members, one after the other."""
        call = "all_gather_single"
        arguments.check_alike(call, [source], output, sizes=False)
        if output.numel() != source.numel() * self.size():
            raise ArgumentError(
                f"ddl {call}: invalid tensor size: the output of {output.numel()} elements is not {self.size()} times "
                f"the input of {source.numel()}"
            )
        memory, mine = TensorBytes(output), TensorBytes(source)
        memory.bytes.reshape(self.size(), -1)[self.rank()] = mine.bytes
        start = partial(self._collectives.allgather, memory.bytes)
        return self._submit(Call(call, output, read_seconds(opts)), start, memory.write_back)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Fill each tensor with those of all members, one after the other."""
        call = "all_gather_single_coalesced"
        arguments.check_length(call, "output", outputs, len(inputs))
        rows = [output.detach().view(self.size(), -1).unbind() for output in outputs]
        parts = [row[member] for member in range(self.size()) for row in rows]
        return self._gather_rows(Call(call, outputs, read_seconds(opts)), [parts], inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None, root: int = 0) -> Any:  # noqa: ANN401
        """Copy the tensor of each member to the root."""
        call, inputs = "gather", as_tensors(inputs)
        root = root if opts is None else opts.rootRank
        arguments.check_root(call, root, self.size())
        arguments.check_single(call, "input tensor list", inputs)
        at_root = self.rank() == root
        self._check_root_lists(call, "output", outputs, inputs[0], at_root=at_root)
        sends: list[Any] = [None] * self.size()
        sends[root] = inputs[0]
        receives = outputs[0] if at_root else [None] * self.size()
        return self._exchange(Call(call, outputs[0] if at_root else [], read_seconds(opts)), sends, receives)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None, root: int = 0) -> Any:  # noqa: ANN401
        """Copy a tensor per member from the root to its member."""
        call, outputs = "scatter", as_tensors(outputs)
        root = root if opts is None else opts.rootRank
        arguments.check_root(call, root, self.size())
        arguments.check_single(call, "output tensor list", outputs)
        at_root = self.rank() == root
        self._check_root_lists(call, "input", inputs, outputs[0], at_root=at_root)
        receives: list[Any] = [None] * self.size()
        receives[root] = outputs[0]
        sends = inputs[0] if at_root else [None] * self.size()
        return self._exchange(Call(call, outputs, read_seconds(opts)), sends, receives)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Send a tensor to each member, and receive one from each."""
        arguments.check_length("alltoall", "output", outputs, self.size())
        arguments.check_length("alltoall", "input", inputs, self.size())
        return self._exchange(Call("alltoall", outputs, read_seconds(opts)), inputs, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Send a part of a tensor to each member, and receive a part from each; no sizes: equal parts."""
        receives = _split("output", output, output_sizes, self.size())
        sends = _split("input", source, input_sizes, self.size())
        return self._exchange(Call("all_to_all_single", output, read_seconds(opts)), sends, receives)

    all_to_all_single = alltoall_base

    def _gather_rows(self, call: Call, outputs: list[Tensors], inputs: Tensors) -> Any:  # noqa: ANN401
        """Copy the bytes of the inputs of each member to each list of outputs, in the order of the members."""
        mine = [TensorBytes(tensor).bytes for tensor in inputs]
        rows = np.empty((self.size(), sum(part.size for part in mine)), np.uint8)
        rows[self.rank()] = np.concatenate(mine)
        flat = rows.reshape(-1)
        targets = [[TensorBytes(tensor) for tensor in tensors] for tensors in outputs]

        def done() -> None:
            for tensors in targets:
                at = 0
                for target in tensors:
                    target.bytes[:] = flat[at : at + target.bytes.size]
                    target.write_back()
                    at += target.bytes.size

        return self._submit(call, partial(self._collectives.allgather, flat), done)

    def _exchange(self, call: Call, sends: Sequence[Any], receives: Sequence[Any]) -> Any:  # noqa: ANN401
        """Send a tensor to each member and receive one from each; None: nothing."""
        parts = [np.empty(0, np.uint8) if tensor is None else TensorBytes(tensor).bytes for tensor in sends]
        targets = [None if tensor is None else TensorBytes(tensor) for tensor in receives]
        blocks = Blocks(parts, [0 if target is None else target.bytes.size for target in targets])

        def done() -> None:
            for member, target in enumerate(targets):
                if target is not None:
                    target.bytes[:] = blocks.received(member, self.rank())
                    target.write_back()

        return self._submit(call, partial(self._collectives.exchange, blocks), done)

    def _check_root_lists(
        self, call: str, kind: str, lists: list[Tensors], like: torch.Tensor, *, at_root: bool
    ) -> None:
        """Check the list of tensors that only the root has."""
        if not at_root:
            arguments.check_empty(call, kind, lists)
            return
        arguments.check_single(call, f"{kind} list", lists)
        arguments.check_length(call, kind, lists[0], self.size())
        arguments.check_alike(call, lists[0], like)


def _split(kind: str, tensor: torch.Tensor, sizes: list[int], ways: int) -> list[torch.Tensor]:
    """Return the parts of a tensor for members, or of members. Raises ArgumentError."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes and rows % ways:
        raise ArgumentError(f"ddl all_to_all_single: the {kind} has {rows} rows, which {ways} ranks do not divide")
    sizes = sizes or [rows // ways] * ways
    if len(sizes) != ways or sum(sizes) != rows:
        raise ArgumentError(f"ddl all_to_all_single: the {kind} has {rows} rows, not the sum of {sizes}")
    return list(tensor.split(sizes))
