"""The memory of saved tensors, and how each of them lies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ddlrun.ddl.lms.device import PendingCopy
    from ddlrun.ddl.lms.swap import Swap


class Block:
    """The memory of one storage, whatever tensors lie in it. It lives as long as one of them is saved."""

    __slots__ = ("__weakref__", "arrival", "departure", "host", "memory", "nbytes", "number", "streams")

    def __init__(self, number: int, memory: Tensor, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes
        self.memory: Tensor | None = memory
        """Any tensor in the storage, while it is on the device."""
        self.host: Tensor | None = None
        self.departure: PendingCopy | None = None
        self.arrival: PendingCopy | None = None
        self.streams: set[Any] = set()
        """What has written or read the memory on the device."""


class SavedTensor(NamedTuple):
    """What torch keeps instead of a tensor: how that lies in its block.

    `counter` shares the tensor's version counter, and has no memory.
    """

    counter: Tensor
    version: int
    swap: Swap
    block: Block
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int

    def fetch(self) -> Tensor:
        """Return the tensor."""
        return self.swap.fetch(self)

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor as it lies in the block's memory."""
        if memory.dtype is self.dtype:
            return memory.as_strided(self.shape, self.strides, self.offset)
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory.untyped_storage(), self.offset, self.shape, self.strides)


class InFlightCopy(NamedTuple):
    """A copy under way, and the memory on the device that it needs, should its block die before it ends."""

    copy: PendingCopy
    memory: Tensor
    streams: set[Any]


def storage_of(tensor: Tensor) -> int:
    """Return what names a storage while it lives."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - what torch's own weak references go by


def holders(tensor: Tensor) -> int:
    """Return how many tensors have this memory, the one for Python's own object included."""
    return int(torch._C._storage_Use_Count(storage_of(tensor)))  # noqa: SLF001 - nothing public says it
