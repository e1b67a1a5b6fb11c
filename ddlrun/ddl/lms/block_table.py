"""The blocks of a device: by number, by storage and by location."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import torch

from ddlrun.ddl.lms.block import Block, count_owners, find_layout, storage_key
from ddlrun.ddl.lms.order import SaveOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ddlrun.ddl.lms.order import MemoryLocation

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
        self._dead: deque[int] = deque()
        self._sole_owner = count_owners(torch.empty(1, device="cpu"))
        """The reference count of memory without another owner."""

    def __len__(self) -> int:
        return len(self.order)

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
        key = self._storage_of.pop(number, None)
        # The key of a dead block's storage may belong to another block by now.
        if key is not None and self._number_of.get(key) == number:
            del self._number_of[key]

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
