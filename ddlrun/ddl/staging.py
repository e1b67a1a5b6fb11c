"""Tensors of an accelerator in the host's memory and back: MPI libraries are seldom built to read a GPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ddlrun.ddl.arrays import FlatArray, as_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class StagedTensor(FlatArray):
    """A tensor of a device; `elements` are its copy in the host's memory, `whole` is the tensor and that copy."""

    __slots__ = ()

    def give_back(self) -> None:
        """Copy the elements to the device, in the order of its current stream."""
        tensor, host = self.whole
        tensor.copy_(host, non_blocking=tensor.is_cuda)


def staged(tensors: Sequence[Tensor]) -> list[StagedTensor]:
    """Copy tensors into pinned memory and wait for that: MPI reads what is there, it knows no streams.

    Raises InputError on a dtype that numpy does not know.
    """
    found = [_copy(tensor.detach()) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return found


def _copy(tensor: Tensor) -> StagedTensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    host.copy_(tensor, non_blocking=tensor.is_cuda)
    view, dtype = as_numpy(host)
    return StagedTensor(view.reshape(-1), dtype, view.shape, (tensor, host))
