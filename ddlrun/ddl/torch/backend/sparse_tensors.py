"""The sum of sparse tensors, whose members have different indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.ddl.torch.backend.tensor_bytes import TensorBytes

if TYPE_CHECKING:
    Tensors = list[torch.Tensor]

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
