"""The saved tensors of a device: packed when an operation saves them, fetched when backward needs them.

Memory leaves only if it has no other owner: else it would not become free, and another owner could change it unnoticed.
So it waits in the order of saving, and is checked whenever more is saved. Nothing here holds a tensor that torch passed
in: that would be a cycle through torch's graph.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

import torch

from ddlrun.ddl.lms.block import Block, BlockTable, InFlightCopy, SavedTensor
from ddlrun.ddl.lms.order import MemoryLocation
from ddlrun.ddl.lms.policy import Demand, MemoryLoad
from ddlrun.ddl.lms.stats import Stats
from ddlrun.units import render_memory

if TYPE_CHECKING:
    from torch import Tensor

    from ddlrun.ddl.lms.device import SwapDevice
    from ddlrun.ddl.lms.policy import Policy


class Swap:
    """The saved tensors of one device. Threads may pack and fetch at the same time, as torch's backward does."""

    def __init__(self, device: SwapDevice, policy: Policy) -> None:
        self._device, self._policy = device, policy
        self._lock = threading.RLock()
        self._table = BlockTable()
        self._order = self._table.order
        self._in_flight: dict[int, InFlightCopy] = {}
        self._refused_at: int | None = None
        """The bytes on the host when it had no room for more, until it has fewer."""
        self._empty: Tensor | None = None
        self._counts = Counter[str](capacity=device.capacity)
        self._demand = Demand(int(policy.full * device.capacity), learns=device.usage().peak is not None)

    @property
    def stats(self) -> Stats:
        """The statistics so far."""
        with self._lock:
            self._remove_dead()
            return Stats(**self._counts)

    def __len__(self) -> int:
        """Return the number of blocks that are saved now."""
        with self._lock:
            self._remove_dead()
            return len(self._table)

    def pack(self, tensor: Tensor) -> SavedTensor:
        """Return the object to save instead of a tensor; let other blocks leave if the device is too full."""
        if self._empty is None:
            self._empty = tensor.new_empty(0)
        counter = tensor.detach()
        counter.data = self._empty
        with self._lock:
            self._remove_dead()
            used = self._measure(begins=self._demand.is_over(self._table.oldest()))
            block = self._find_block(tensor)
            self._make_room(used)
            self._note_blocks()
        return SavedTensor(
            counter=counter,
            version=tensor._version,  # noqa: SLF001 - torch has no other name for it
            load=self.fetch,
            block=block,
            dtype=tensor.dtype,
            shape=tensor.shape,
            strides=tensor.stride(),
            offset=int(tensor.storage_offset()),
        )

    def fetch(self, saved: SavedTensor) -> Tensor:
        """Return a tensor that was packed, and begin to bring back those that are needed next."""
        with self._lock:
            self._remove_dead()
            block = saved.block
            if self._demand.learning or block.number == self._table.oldest():
                self._measure()
            self._demand.note_backward(self._table.next)
            self._make_room_in_backward(block)
            memory = self._make_resident(block)
            self._device.lend(memory, block.streams)
            tensor = saved.view(memory)
            if block.host is not None and self._excess_of_blocks() > 0:
                self._release(block)  # it is the backward's alone, which frees it before others need it again
            self._prefetch(block.number)
            self._note_blocks()
        return tensor

    def _find_block(self, tensor: Tensor) -> Block:
        block = self._table.find(tensor)
        if block is None:
            block = self._table.add(tensor)
            self._counts["saved"] += 1
            self._demand.note_block(block.nbytes)
        block.streams.add(self._device.stream())
        return block

    def _make_room(self, used: int) -> None:
        """Let blocks leave until the policy is satisfied, and wait for those that it requires to be waited for."""
        excess = self._policy.excess(self._load(used))
        for block in self._table.at(MemoryLocation.LEAVING):
            if block.departure is not None and not block.departure.done():
                break
            self._release(block)
        if excess and not self._host_is_full():
            self._send_out_some(excess)
        for block in self._table.at(MemoryLocation.LEAVING):
            if not self._policy.must_wait(self._load(), self._order.newest(MemoryLocation.LEAVING)):
                break
            if block.departure is not None and not block.departure.done():
                self._counts["throttled"] += 1
            self._release(block)

    def _send_out_some(self, excess: int) -> None:
        """Let blocks leave: without other owners first, and of these those that the host has already."""
        for block in self._table.unowned(MemoryLocation.ON_BOTH, MemoryLocation.ON_DEVICE):
            if excess <= 0 or not self._send_out(block):
                break
            excess -= block.nbytes
        # Other owners may let go of memory before more is saved.
        for block in self._table.at(MemoryLocation.ON_DEVICE):
            if self._excess_of_blocks() <= self._order.nbytes[MemoryLocation.LEAVING]:
                break
            if block.layout is not None and not self._send_out(block):
                break

    def _excess_of_blocks(self) -> int:
        """Return the bytes of blocks on the device beyond the limit."""
        return self._order.on_device() - self._demand.limit

    def _send_out(self, block: Block) -> bool:
        """Let a block leave; return False if the host has no room for it."""
        if block.memory is None or block.host is not None:
            self._release(block)
            return True
        is_shared = self._table.is_shared(block.memory)
        flat = torch.empty(0, dtype=torch.uint8, device=block.memory.device).set_(block.memory.untyped_storage())
        try:
            block.host, block.departure = self._device.take_out(flat, block.streams)
        except RuntimeError as error:
            self._note_refusal(block.nbytes, error)
            return False
        if is_shared:
            block.version = block.memory._version  # noqa: SLF001 - torch has no other name for it
        self._in_flight[block.number] = InFlightCopy(block.departure, flat, block.streams)
        self._order.move(block.number, MemoryLocation.LEAVING)
        self._counts["out"] += 1
        self._counts["bytes_out"] += block.nbytes
        self._note_peak("host_peak", self._order.on_host())
        return True

    def _release(self, block: Block) -> None:
        """Free a block's memory on the device, after all copies that need it."""
        for copy in (block.departure, block.arrival):
            if copy is not None and not copy.done():
                copy.wait(block.streams)
        self._in_flight.pop(block.number, None)
        if block.version is not None and block.memory is not None:
            self._table.leave(block.number, block.memory)
        else:
            self._table.detach(block.number)
        block.memory = block.arrival = None
        self._order.move(block.number, MemoryLocation.ON_HOST)

    def _make_resident(self, block: Block) -> Tensor:
        """Return a block's memory on the device; the current stream runs later work after its copy."""
        location = self._order.location(block.number)
        if location is MemoryLocation.ON_HOST:
            self._counts["missed"] += 1
            self._bring_back_now(block)
        if block.arrival is not None and block.arrival.done():
            block.arrival = None
        late = block.arrival is not None and location is not MemoryLocation.ON_BOTH
        if late or location is MemoryLocation.ON_HOST:
            self._counts["waits"] += 1
        if block.arrival is not None:
            block.arrival.wait()
        if location is not MemoryLocation.ON_DEVICE:
            self._in_flight.pop(block.number, None)
            self._order.move(block.number, MemoryLocation.ON_BOTH)
        if block.memory is None:
            raise AssertionError(f"block {block.number} is {location.name}, without memory")
        return block.memory

    def _prefetch(self, number: int) -> None:
        """Begin to bring back the blocks that backward needs after block `number`."""
        for block in self._table.living(self._order.passed(number, MemoryLocation.RETURNING)):
            self._release(block)  # it was brought back in vain
        for block in self._table.living(self._order.next_needed(number, MemoryLocation.ON_HOST)):
            if not self._make_room_ahead(block):
                break
            try:
                self._bring_back(block)
            except torch.cuda.OutOfMemoryError:  # other programs use the memory: the block comes when it is needed
                break

    def _make_room_ahead(self, block: Block) -> bool:
        """Return True if a block may come back now; blocks that are needed later than it make room."""
        while not self._policy.may_come(block.nbytes, self._load()):
            last = next(self._table.at(MemoryLocation.RETURNING), None)
            if last is None or last.number > block.number:
                return False
            self._release(last)
        return True

    def _bring_back_now(self, block: Block) -> None:
        """Bring back a block that is needed now, if necessary in the place of blocks that came ahead or were used."""
        try:
            self._bring_back(block)
        except torch.cuda.OutOfMemoryError:
            for other in (*self._table.at(MemoryLocation.RETURNING), *self._table.unowned(MemoryLocation.ON_BOTH)):
                self._release(other)
            self._bring_back(block)

    def _make_room_in_backward(self, needed: Block) -> None:
        """Let all blocks but one leave, if the device is too full: first those that backward has used."""
        if not self._order.nbytes[MemoryLocation.ON_BOTH] and self._excess_of_blocks() <= 0:
            return
        excess = self._policy.over_full(self._load())
        for block in self._table.unowned(MemoryLocation.ON_BOTH, MemoryLocation.ON_DEVICE) if excess else ():
            if excess <= 0:
                break
            if block is not needed:
                if not self._send_out(block):
                    break
                excess -= block.nbytes
                self._release(block)

    def _bring_back(self, block: Block) -> None:
        if block.host is None:
            raise AssertionError(f"block {block.number} is nowhere")
        block.memory, block.arrival = self._device.bring_back(block.host, block.departure)
        block.streams = {self._device.stream()}
        self._table.detach(block.number)
        block.version = None
        self._table.attach(block.number, block.memory)
        self._in_flight[block.number] = InFlightCopy(block.arrival, block.memory, block.streams)
        self._order.move(block.number, MemoryLocation.RETURNING)
        self._counts["back"] += 1
        self._counts["bytes_in"] += block.nbytes

    def _remove_dead(self) -> None:
        """Remove the blocks that no graph holds any more, after their copies in progress."""
        for number in self._table.remove_dead():
            flight = self._in_flight.pop(number, None)
            if flight is not None and not flight.copy.done():
                flight.copy.wait(flight.streams)

    def _load(self, used: int | None = None) -> MemoryLoad:
        used, nbytes = self._device.usage().now if used is None else used, self._order.nbytes
        self._note_peak("device_peak", used)
        return MemoryLoad(
            used,
            self._device.capacity,
            nbytes[MemoryLocation.LEAVING],
            nbytes[MemoryLocation.RETURNING],
            -self._excess_of_blocks(),
        )

    def _measure(self, *, begins: bool = False) -> int:
        """Return the bytes in use; take them and their peak into account, in a new pass if one begins."""
        (used, peak), left = self._device.usage(), 0
        if self._demand.learning:
            left = self._table.nbytes_left()
            self._device.reset_peak()
        if begins:
            self._demand.begin(used - self._order.on_device(), peak or 0)
        else:
            self._demand.note_peak(peak or 0, left)
        return used

    def _note_blocks(self) -> None:
        if self._demand.learning:
            self._demand.note_blocks(sum(self._order.nbytes.values()), self._order.on_device())

    def _host_is_full(self) -> bool:
        """Return True if the host last had no room, and holds no less now: then nothing leaves."""
        if self._refused_at is not None and self._order.on_host() < self._refused_at:
            self._refused_at = None
        return self._refused_at is not None

    def _note_refusal(self, nbytes: int, error: RuntimeError) -> None:
        if not self._counts["refused"]:
            sys.stderr.write(f"ddlrun.ddl.lms: no {render_memory(nbytes)} of pinned memory, so tensors stay: {error}\n")
        self._refused_at = max(1, self._order.on_host())
        self._counts["refused"] += 1

    def _note_peak(self, name: str, nbytes: int) -> None:
        self._counts[name] = max(self._counts[name], nbytes)
