"""Blocks: the memory of saved tensors, and the layout of each tensor in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.multiprocessing.reductions import StorageWeakRef

    from ddlrun.ddl.lms.device import PendingCopy


class Block:
    """The memory of one storage, whatever tensors lie in it. It lives as long as one of them is saved."""

    __slots__ = (
        "__weakref__", "arrival", "departure", "host", "layout", "left", "memory", "nbytes", "number", "streams",
        "version",
    )  # fmt: skip

    def __init__(self, number: int, memory: Tensor, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes
        self.layout = find_layout(memory)
        """The layout of the first tensor, if it fills the memory: then its version is that of all of it."""
        self.memory: Tensor | None = memory
        """Any tensor in the storage, while it is on the device."""
        self.host: Tensor | None = None
        """The copy in host memory."""
        self.departure: PendingCopy | None = None
        """The copy to the host."""
        self.arrival: PendingCopy | None = None
        """The copy back to the device."""
        self.streams: set[Any] = set()
        """The streams that have written or read the memory on the device."""
        self.version: int | None = None
        """The version of memory with other owners when its copy to the host began."""
        self.left: StorageWeakRef | None = None
        """The storage that it has left to other owners; this keeps its key from being used again."""


class SavedTensor(NamedTuple):
    """The object that torch saves instead of a tensor: its block, and its layout there.

    counter: a tensor without memory that shares the version counter. version: the version when it was saved. load:
    returns the tensor of a SavedTensor.
    """

    counter: Tensor
    version: int
    load: Callable[[SavedTensor], Tensor]
    block: Block
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int

    def fetch(self) -> Tensor:
        """Return the tensor."""
        return self.load(self)

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor as a view of the block's memory."""
        if memory.dtype is self.dtype:
            return memory.as_strided(self.shape, self.strides, self.offset)
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory.untyped_storage(), self.offset, self.shape, self.strides)


class InFlightCopy(NamedTuple):
    """A copy in progress, and the memory on the device that it needs even if its block dies before it ends."""

    copy: PendingCopy
    memory: Tensor
    streams: set[Any]


def find_layout(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return the shape and strides of a tensor that fills its storage; None for a part of it.

    Other parts may be written without a new version of this one, as an LSTM does.
    """
    return (tensor.shape, tensor.stride()) if tensor.nbytes == tensor.untyped_storage().nbytes() else None


def storage_key(tensor: Tensor) -> int:
    """Return a number that identifies the tensor's storage as long as it lives."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the identity that torch's own weak references use


def count_owners(tensor: Tensor) -> int:
    """Return the reference count of the tensor's storage, including the one of Python's object."""
    return int(torch._C._storage_Use_Count(storage_key(tensor)))  # noqa: SLF001 - torch has no public name for it
