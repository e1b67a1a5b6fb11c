"""The memory of tensors as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddlrun.ddl.flat import as_numpy
from ddlrun.errors import InputError

if TYPE_CHECKING:
    Tensors = list[torch.Tensor]


class TensorBytes:
    """The bytes of a tensor, contiguous: its own, or a copy of them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise InputError(f"backend ddl: a tensor on {tensor.device}; it reduces tensors on the CPU")
        self._tensor = tensor.detach()
        self._whole = self._tensor.contiguous()

    @property
    def bytes(self) -> Any:  # noqa: ANN401 - a numpy array of uint8
        """The bytes as a flat array."""
        return self._whole.reshape(-1).view(torch.uint8).numpy()

    @property
    def elements(self) -> tuple[Any, str]:
        """The elements as a flat numpy array, and the name of their dtype."""
        return as_numpy(self._whole.reshape(-1))

    def write_back(self) -> None:
        """Copy the bytes to the tensor if they are a copy."""
        if self._whole.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._whole)


def only(tensors: Tensors) -> torch.Tensor:
    """Return the tensor of a list of one. Raises InputError."""
    if len(tensors) != 1:
        raise InputError(f"backend ddl: {len(tensors)} tensors instead of one")
    return tensors[0]
