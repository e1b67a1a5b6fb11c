"""Copies of device tensors in host memory: MPI libraries are rarely built to read a GPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ddlrun.ddl.group.flat import FlatArray, as_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class StagedTensor(FlatArray):
    """A device tensor; `elements` are its copy in host memory, `whole` is the pair (tensor, copy)."""

    __slots__ = ()

    def write_back(self) -> None:
        """Copy the elements to the device, in the order of its current stream."""
        tensor, host = self.whole
        tensor.copy_(host, non_blocking=tensor.is_cuda)


def stage(tensors: Sequence[Tensor]) -> list[StagedTensor]:
    """Copy tensors to pinned host memory, and wait for the copies: MPI does not know the device's streams.

    Raises InputError if numpy has no dtype for a tensor.
    """
    copies = [_copy(tensor.detach()) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _copy(tensor: Tensor) -> StagedTensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    host.copy_(tensor, non_blocking=tensor.is_cuda)
    view, dtype = as_numpy(host)
    return StagedTensor(view.reshape(-1), dtype, view.shape, (tensor, host))
