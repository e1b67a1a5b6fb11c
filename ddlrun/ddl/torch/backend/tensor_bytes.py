"""The memory of tensors as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl.group.flat import as_numpy, view_bytes
from ddlrun.ddl.torch.backend.errors import ArgumentError
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
