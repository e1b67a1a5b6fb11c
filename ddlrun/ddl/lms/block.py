"""Blocks: the memory of saved tensors, the layout of each tensor in it, and the blocks of a device."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ddlrun.ddl.lms.order import SaveOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ddlrun.ddl.lms.device import PendingCopy
    from ddlrun.ddl.lms.order import MemoryLocation


class Block:
    """The memory of one storage, whatever tensors lie in it. It lives as long as one of them is saved."""

    __slots__ = (
        "__weakref__", "arrival", "departure", "host", "layout", "memory", "nbytes", "number", "streams", "version",
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


# Blocks of a location that are checked per save, at most: other owners may hold many.
MAX_CHECKED = 256


class BlockTable:
    """The blocks that graphs hold. It holds no block itself, so a block dies with the last graph that needs it.

    Its owner locks it. A block may die at any time, even in the middle of a call, so it is removed later, by
    `remove_dead`.
    """

    def __init__(self) -> None:
        self.order = SaveOrder()
        self.next = 0
        """The number of the next block."""
        self._blocks: dict[int, weakref.ref[Block]] = {}
        self._storage_of: dict[int, int] = {}
        """Number -> key of its storage, while it is on the device."""
        self._number_of: dict[int, int] = {}
        """The inverse."""
        self._left: dict[int, tuple[StorageWeakRef, int]] = {}
        """Number -> storage that it has left to other owners, and its bytes; this keeps a key from being used again."""
        self._dead: deque[int] = deque()
        self._sole_owner = count_owners(torch.empty(1, device="cpu"))
        """The reference count of memory without another owner."""

    def __len__(self) -> int:
        return len(self.order)

    def oldest(self) -> int:
        """Return the number of the block that was added first; that of the next one if there is none."""
        return next(iter(self._blocks), self.next)

    def find(self, tensor: Tensor) -> Block | None:
        """Return the block of the tensor's storage, if there is one, and its copy has not been outdated by a write."""
        key = storage_key(tensor)
        block = self._blocks[self._number_of[key]]() if key in self._number_of else None
        if block is None or block.version is None:
            return block
        version = tensor._version  # noqa: SLF001 - torch has no other name for it
        return block if (version, find_layout(tensor)) == (block.version, block.layout) else None

    def add(self, tensor: Tensor) -> Block:
        """Return a new block for the tensor's storage."""
        number = self.next
        self.next += 1
        block = Block(number, tensor.detach(), tensor.untyped_storage().nbytes())
        dead = self._dead
        self._blocks[number] = weakref.ref(block, lambda _: dead.append(number))
        self.order.add(number, block.nbytes)
        self.attach(number, tensor)
        return block

    def attach(self, number: int, memory: Tensor) -> None:
        """Note that a block is in the storage of `memory`."""
        key = storage_key(memory)
        self._storage_of[number], self._number_of[key] = key, number

    def detach(self, number: int) -> None:
        """Note that a block has no storage on the device."""
        self._left.pop(number, None)
        key = self._storage_of.pop(number, None)
        # The key of a dead block's storage may belong to another block by now.
        if key is not None and self._number_of.get(key) == number:
            del self._number_of[key]

    def leave(self, number: int, memory: Tensor) -> None:
        """Note that a block has left the storage of `memory` to other owners."""
        storage = memory.untyped_storage()
        self._left[number] = StorageWeakRef(storage), storage.nbytes()

    def nbytes_left(self) -> int:
        """Return the bytes of storages that blocks have left and that other owners still use."""
        for number in [number for number, (storage, _) in self._left.items() if storage.expired()]:
            self.detach(number)
        return sum(nbytes for _, nbytes in self._left.values())

    def at(self, location: MemoryLocation) -> Iterator[Block]:
        """Yield the blocks in a location, the one saved first in front."""
        return self.living(self.order.at(location))

    def unowned(self, *locations: MemoryLocation) -> Iterator[Block]:
        """Yield the blocks in locations whose memory has no other owner, the one saved first in front."""
        for location in locations:
            for block in islice(self.at(location), MAX_CHECKED):
                if block.memory is not None and not self.is_shared(block.memory):
                    yield block

    def is_shared(self, memory: Tensor) -> bool:
        """Return True if the memory of a block has other owners."""
        return count_owners(memory) > self._sole_owner

    def living(self, numbers: Iterator[int] | tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks of numbers that are alive."""
        for number in numbers:
            block = self._blocks[number]()
            if block is not None:
                yield block

    def remove_dead(self) -> Iterator[int]:
        """Remove the blocks that no graph holds any more, and yield their numbers."""
        while self._dead:
            number = self._dead.popleft()
            self.detach(number)
            del self._blocks[number]
            self.order.remove(number)
            yield number
