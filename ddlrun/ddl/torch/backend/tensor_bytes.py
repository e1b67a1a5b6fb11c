"""The memory of tensors as numpy arrays, and the sum of sparse tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddlrun.ddl.group.flat import as_numpy, view_bytes
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Tensors = list[torch.Tensor]


class TensorBytes:
    """The bytes of a tensor, contiguous: its own, or a copy of them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise ArgumentError(f"backend ddl: a tensor on {tensor.device} in a call with tensors on the CPU")
        if tensor.layout != torch.strided:
            raise ArgumentError(f"backend ddl: unsupported layout {tensor.layout}; only allreduce takes sparse tensors")
        self._tensor = tensor.detach()
        self._whole = self._tensor.resolve_conj().resolve_neg().contiguous()

    @property
    def bytes(self) -> Any:  # noqa: ANN401 - a numpy array of uint8
        """The bytes as a flat array."""
        return view_bytes(self._whole)

    @property
    def elements(self) -> tuple[Any, str]:
        """The elements as a flat numpy array, and the name of their dtype. Raises ArgumentError."""
        try:
            array, dtype = as_numpy(self._whole)
        except InputError as error:
            raise ArgumentError(*error.problems) from error
        return array.reshape(-1), dtype

    def write_back(self) -> None:
        """Copy the bytes to the tensor if they are a copy."""
        if self._whole.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._whole)


def join(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of tensors of one dtype as one flat tensor."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def split_into(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy consecutive parts of a flat tensor to tensors."""
    at = 0
    for tensor in tensors:
        tensor.detach().copy_(whole[at : at + tensor.numel()].reshape(tensor.shape))
        at += tensor.numel()


HEAD = 8
"""Bytes of the number of indices, with which a blob begins; the indices follow, and then the values."""


class SparseSum:
    """The sum of the sparse tensors of all members, in the order of the members: all have the same bits."""

    def __init__(self, tensors: Tensors) -> None:
        """Take tensors of the same size, which are added to each other first. Raises ArgumentError."""
        if tensors[0].layout != torch.sparse_coo:
            raise ArgumentError(f"ddl allreduce: unsupported layout {tensors[0].layout}")
        self._tensors = tensors
        total = tensors[0].detach()
        for tensor in tensors[1:]:
            total = total + tensor.detach()
        self._total = total.coalesce()
        self.blobs: dict[int, Any] = {}
        """The bytes of all members, after the exchange."""

    def pack(self) -> bytes:
        """Return the bytes of this member."""
        indices, values = self._total.indices(), self._total.values()
        count = indices.shape[1].to_bytes(HEAD, "little")
        return b"".join((count, TensorBytes(indices).bytes.tobytes(), TensorBytes(values).bytes.tobytes()))

    def _unpack(self, blob: Any) -> torch.Tensor:  # noqa: ANN401 - bytes
        total = self._total
        data = torch.from_numpy(np.frombuffer(blob, np.uint8).copy())
        count, dimensions = int.from_bytes(blob[:HEAD], "little"), total.sparse_dim()
        end = HEAD + count * dimensions * 8
        indices = data[HEAD:end].view(torch.int64).reshape(dimensions, count)
        values = data[end:].clone().view(total.dtype).reshape(count, *total.shape[dimensions:])
        return torch.sparse_coo_tensor(indices, values, total.shape)

    def write(self) -> None:
        """Add the tensors of the members, and store the sum in those of this one."""
        parts = [self._unpack(self.blobs[member]) for member in sorted(self.blobs)]
        indices = torch.cat([part._indices() for part in parts], dim=1)  # noqa: SLF001 - not yet coalesced
        values = torch.cat([part._values() for part in parts])  # noqa: SLF001
        total = torch.sparse_coo_tensor(indices, values, self._total.shape).coalesce()
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.copy_(total)
